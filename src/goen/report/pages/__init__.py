"""How each study is told: from a run's folder to the sections of a page."""
