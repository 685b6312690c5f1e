"""``goen help TOPIC`` and ``goen --version --verbose``: what no single command explains."""

from importlib.metadata import PackageNotFoundError, distribution, requires, version

EXIT_CODES = """\
Exit codes of every command:

  0    success
  1    finished, but goen score could not read some images, goen check found other numbers, or
       goen data check found problems
  2    an error that you can correct: an option, a file, images; one sentence says what to do
  3    goen watch: an alarm
  130  stopped by Ctrl-C
  143  stopped by SIGTERM"""

ENVIRONMENT = """\
Environment variables:

  GOEN_DATA         a folder of datasets, in their original or another common format
  GOEN_CACHE        the folder for downloaded and converted datasets
  GOEN_SERVE_TOKEN  the token that goen serve asks its clients for
  NO_COLOR          tables and messages without colours
  COLUMNS           the width of tables and help"""

TOPICS = {"exit-codes": EXIT_CODES, "environment": ENVIRONMENT}


def describe_installation() -> str:
    """Versions, processor and extras, one line each."""
    from goen.io.provenance import hardware, versions  # torch: seconds, and only here

    lines = [f"{name:<12} {value}" for name, value in {**versions(), **hardware()}.items()]
    extras = sorted(distribution("goen").metadata.get_all("Provides-Extra") or ())
    present = [extra for extra in extras if _is_installed(extra)]
    return "\n".join([*lines, f"{'extras':<12} {' '.join(present) or 'none'}"])


def _is_installed(extra: str) -> bool:
    """Whether all packages of an extra are here."""
    for requirement in requires("goen") or ():
        name, _, marker = requirement.partition(";")
        if f"'{extra}'" not in marker.replace('"', "'"):
            continue
        package = name.split("[")[0].split(">")[0].split("<")[0].split("=")[0].strip()
        try:
            version(package)
        except PackageNotFoundError:
            return False
    return True
