"""`python -m experiments STUDY`: run what is missing of a study, and write its report."""

import argparse
import signal
import tempfile
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from experiments.design import Job, Study
from experiments.report import DOCS, write_report
from experiments.run import Point, run
from experiments.store import RESULTS, Store
from experiments.studies import STUDIES

_EXAMPLES = """examples:
  python -m experiments steppo                      all of it; interrupt at will, finished runs are kept
  python -m experiments steppo --case '2 turns'     one case
  python -m experiments all --report                only write the reports again from what was run
  python -m experiments all --quick                 one update of each arm, in a folder that is thrown away
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line asks."""
    options = _parser().parse_args(arguments)
    console = Console()
    studies = list(STUDIES.values()) if options.study == "all" else [STUDIES[options.study]]
    if options.quick:
        with tempfile.TemporaryDirectory() as folder:
            for study in studies:
                _make(console, study, options, Path(folder), Path(folder))
        return
    for study in studies:
        _make(console, study, options, RESULTS, DOCS)


def _make(console: Console, study: Study, options: argparse.Namespace, results: Path, docs: Path) -> None:
    store = Store(results / f"{study.name}.jsonl")
    if not options.report:
        cases = options.case or [case.name for case in study.cases]
        missing = [job for job in study.jobs(quick=options.quick) if job.case in cases and store.find(job) is None]
        try:
            run_missing(console, missing, store, options.workers)
        except KeyboardInterrupt:
            console.print("stopped; what is finished is kept, and the same command goes on")
            raise SystemExit(130) from None
    console.print(f"report: {write_report(study, store, docs)}", highlight=False)


def run_missing(console: Console, jobs: Sequence[Job], store: Store, workers: int) -> None:
    """Run the jobs, each on one core, and keep each as soon as it is finished."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar, closing(_finished(jobs, workers)) as finished:
        task = bar.add_task("runs", total=len(jobs))
        for job, points in finished:
            store.put(job, points)
            bar.update(task, advance=1, description=f"{job.case} {job.arm}")


def _finished(jobs: Sequence[Job], workers: int) -> Generator[tuple[Job, list[Point]], None, None]:
    """The jobs as they end; a single worker is this process."""
    if workers == 1:
        yield from ((job, run(job.config)) for job in jobs)
        return
    # Ctrl-C is for this process alone, which then waits for the runs under way, some seconds
    deaf = (signal.SIGINT, signal.SIG_IGN)
    processes = ProcessPoolExecutor(workers, get_context("spawn"), initializer=signal.signal, initargs=deaf)
    try:
        futures: dict[Future[list[Point]], Job] = {processes.submit(run, job.config): job for job in jobs}
        yield from ((futures[future], future.result()) for future in as_completed(futures))
    finally:
        processes.shutdown(cancel_futures=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        description="Try the papers' claims at a size for one core. Finished runs are kept in experiments/results, and "
        "made again only when their settings change; reports go to docs/experiments.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", choices=[*STUDIES, "all"], help="which study")
    parser.add_argument("--case", action="append", metavar="NAME", help="only this case; may be repeated")
    parser.add_argument("--workers", type=int, default=2, help="runs at once, one core each (default 2)")
    parser.add_argument("--report", action="store_true", help="run nothing, only write the report")
    parser.add_argument("--quick", action="store_true", help="one update of each arm, to see that all of it runs")
    return parser


if __name__ == "__main__":
    main()
