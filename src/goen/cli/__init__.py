"""The command line: one file per command, each of which parses and makes one library call.

To add one: ``NAME.py`` with one function ``NAME_command``, and a line in ``COMMANDS`` of ``main``
(and in ``_RESUMABLE`` there, if the same command goes on after an interruption).
"""
