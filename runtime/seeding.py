"""The tasks that a run file names, on the bus before the first actor starts: from procedural sources and from files.

Tasks of ``[domains.NAME]`` belong to NAME, whatever their source calls them. Held-out tasks do not depend on the run's
seed, so that runs with different seeds are measured alike. Publishing again what is there is harmless, and skipped when
nothing of it has changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from messages import Task, content_digest
from messages.task import Split
from runtime.bus import Bus
from runtime.config import DomainSection, RunConfig
from runtime.errors import BusUnreachable, ConfigError, UserError
from runtime.publisher import PublishReport, publish_tasks
from runtime.runfolder import write_whole
from runtime.task_files import BadLine, TaskDefaults, TaskLine, read_tasks, source_tasks
from runtime.task_sources import TaskSource

HELD_OUT_SEED = 0
SAY_EVERY = 500

Say = Callable[[str], None]


async def publish_domains(bus: Bus, config: RunConfig, say: Say, warn: Say, marker: Path | None = None) -> int:
    """Publish the tasks of every domain that names a source or files; returns how many were new.

    Args:
        bus: with the right to publish tasks.
        config: the run.
        say: hears of progress.
        warn: hears of lines that are no tasks.
        marker: file that remembers what has been published; None publishes always.

    Raises:
        ConfigError: a source or file that can not be used, or has not one task.
        BusError: the bus does not take them.
    """
    mark = digest(config)
    if _marked(marker) == mark:
        return 0
    new = 0
    for name, domain in config.domains.items():
        report = await _publish_domain(bus, config, name, domain, say)
        new += report.published
        for problem in report.problems:
            warn(str(problem))
        if report.lines and report.lines == report.refused:
            raise ConfigError(f"domains.{name}: not one of its {report.lines} lines is a task; {report.problems[0]}")
    if marker is not None:
        write_whole(marker, mark)
    return new


async def _publish_domain(bus: Bus, config: RunConfig, name: str, domain: DomainSection, say: Say) -> PublishReport:
    def progress(report: PublishReport) -> None:
        if report.lines % SAY_EVERY == 0:
            say(f"publishing tasks of {name}: {report.lines}")

    say(f"publishing tasks of {name}")
    try:
        return await publish_tasks(bus, domain_tasks(config, name, domain), progress)
    except BusUnreachable:
        raise
    except UserError as error:
        raise ConfigError(f"domains.{name}{'.source' if domain.source else ''}: {error}") from error


def domain_tasks(config: RunConfig, name: str, domain: DomainSection) -> Iterator[TaskLine | BadLine]:
    """The tasks of one domain, lazily, training tasks first.

    Raises:
        UserError: a file can not be read, or the source can not do what was asked.
    """
    if domain.source is not None:
        yield from _of_source(config, name, domain)
    splits: tuple[tuple[Split, tuple[str, ...]], ...] = (("train", domain.files), ("eval", domain.eval_files))
    for split, files in splits:
        for file in files:
            yield from read_tasks(Path(file), _defaults(config, name, domain, split))


def _marked(marker: Path | None) -> str:
    return marker.read_text() if marker is not None and marker.is_file() else ""


def digest(config: RunConfig) -> str:
    """What the published tasks depend on, as a digest: the domains, the seed, and the files' sizes and times."""
    files = [file for domain in config.domains.values() for file in (*domain.files, *domain.eval_files)]
    stats = [(file, Path(file).stat().st_size, Path(file).stat().st_mtime_ns) for file in files]
    domains = {name: domain.model_dump(mode="json") for name, domain in config.domains.items()}
    return content_digest(json.dumps([domains, config.run.seed, stats], sort_keys=True).encode())


def _of_source(config: RunConfig, name: str, domain: DomainSection) -> Iterator[TaskLine | BadLine]:
    section = domain.source
    assert section is not None
    options = dict(section.options)
    level = options.pop("level", None)
    source = TaskSource(section.name, options)
    plan: tuple[tuple[Split, int, int], ...] = (
        ("train", section.n_train, config.run.seed),
        ("eval", section.n_eval, HELD_OUT_SEED),
    )
    for split, n, seed in plan:
        tasks = source.tasks(n, seed, split, level)
        yield from source_tasks(_named(tasks, name), section.name, _defaults(config, name, domain, split))


def _named(tasks: Iterator[Task], domain: str) -> Iterator[Task]:
    for task in tasks:
        yield task if task.domain == domain else task.model_copy(update={"domain": domain})


def _defaults(config: RunConfig, name: str, domain: DomainSection, split: Split) -> TaskDefaults:
    return TaskDefaults(
        domain=name,
        verifier=domain.verifier.spec() if domain.verifier is not None else None,
        split=split,
        domains=frozenset((name,)),
        trust_code=config.run.trust_code,
    )
