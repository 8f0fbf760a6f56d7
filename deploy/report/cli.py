"""`olmorl-report`: a run, or several, as one page."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Iterable, Sequence
from pathlib import Path

from olmorl import __version__
from olmorl.deploy.control.command import run_command
from olmorl.deploy.control.options import Parser, count
from olmorl.deploy.report.page import page
from olmorl.deploy.report.run_reader import RunReader
from olmorl.deploy.report.server import LiveReport, ReportServer, read_all
from olmorl.errors import ConfigError, unwritable

_ABOUT = """\
Write a run, or several side by side, as one HTML page that needs no network: curves, where tokens and time went, what
happened when, and every rollout with its rewards, verdicts and tokens.

  olmorl-report runs/demo                      writes report.html
  olmorl-report runs/a runs/b -o compare.html  several runs on the same axes
  olmorl-report runs/demo --serve              serves it on this machine, current while the run goes on

The runs may be running, finished or dead. Nothing in them is changed.
"""
_MIB = 1 << 20


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 done, 2 a mistake to mend."""
    return run_command("olmorl-report", lambda: _report(argv))


def _report(argv: Sequence[str] | None) -> int:
    arguments = _parser().read(argv)
    folders = [path for i, path in enumerate(arguments.run) if path.resolve() not in _resolved(arguments.run[:i])]
    most_bytes = arguments.mib * _MIB // len(folders)
    runs = [RunReader(folder, most_bytes, arguments.tokenizer) for folder in folders]
    if arguments.serve:
        _serve(runs, arguments.port)
    else:
        _write(runs, arguments.output)
    return 0


def _parser() -> Parser:
    parser = Parser(
        "olmorl-report", description=_ABOUT, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("run", nargs="+", type=Path, metavar="RUN", help="the directory of a run")
    add("-o", "--output", type=Path, default=Path("report.html"), metavar="FILE", help="where to (report.html)")
    about = "the most MiB of rollouts, roughly; a larger run keeps every n-th group and all failed groups (64)"
    add("--mib", type=count, default=64, metavar="N", help=about)
    add("--tokenizer", type=Path, metavar="FOLDER", help="the model's folder, if the run does not name it any more")
    add("--serve", action="store_true", help="serve the page on the loopback address, and keep it current")
    add("--port", type=_port, default=0, metavar="N", help="with --serve: the port (default: a free one)")
    add("--version", action="version", version=f"olmorl {__version__}")
    return parser


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 0 <= int(text) <= 65535:
        raise ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)


def _resolved(paths: Iterable[Path]) -> set[Path]:
    return {path.resolve() for path in paths}


def _write(runs: Sequence[RunReader], output: Path) -> None:
    if output.is_dir():
        raise ConfigError(f"-o {output}: a folder; name a file in it, such as {output / 'report.html'}")
    entries, blobs = read_all(runs)
    title = "OlmoRL report: " + ", ".join(run.run_dir.resolve().name for run in runs)
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.writelines(page(title, entries, blobs))
        partial.replace(output)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise unwritable(output, error, "-o") from None
    print(f"{output}: {len(runs)} run(s), {output.stat().st_size / _MIB:.1f} MiB")


def _serve(runs: Sequence[RunReader], port: int) -> None:
    report = LiveReport(runs)
    report.current()
    server = ReportServer(report, port)
    print(f"serving {len(runs)} run(s) until Ctrl-C; open\n{server.url}", flush=True)
    try:
        server.run()
    finally:
        server.close()


if __name__ == "__main__":
    sys.exit(main())
