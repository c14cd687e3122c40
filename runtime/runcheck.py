"""What a run file's fields can not say one by one: knobs that do not fit each other, and things that are not there.

A knob that would do nothing is an error here, never silence.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from messages.topics import TOPICS
from runtime.config import EMBEDDED, DomainSection, RunConfig, SourceSection, VerifierSection
from runtime.errors import ConfigError, UserError
from runtime.task_sources import TaskSource

VERIFIER_ENTRY_POINTS = "busrl.verifiers"
PYTHON_VERIFIER = "python"


def check(config: RunConfig) -> list[str]:
    """Everything that is wrong with a run file whose fields are each right; one line per problem, worst first."""
    return [problem for rule in _RULES for problem in rule(config)]


def verifier_kinds() -> frozenset[str]:
    """Names of the verifier plugins: the built-in ones and those of installed packages.

    Raises:
        ConfigError: the registry can not be imported.
    """
    try:
        registry = importlib.import_module("actors.verifiers").VERIFIERS
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the verifier registry actors.verifiers:VERIFIERS can not be imported: {error}") from error
    return frozenset(registry) | {point.name for point in entry_points(group=VERIFIER_ENTRY_POINTS)}


def reserved_bytes() -> int:
    """Bytes that the streams of a run may take together."""
    return sum(topic.max_bytes for topic in TOPICS)


def _policy(config: RunConfig) -> Iterator[str]:
    path = Path(config.policy.path)
    if not path.is_dir():
        yield f"policy.path: there is no folder {path}"
    elif not (path / "config.json").is_file():
        yield f"policy.path: {path} is not a Hugging Face model folder (there is no config.json in it)"
    else:
        context = _context_length(path / "config.json")
        if context is not None and config.sampling.max_tokens >= context:
            yield (
                f"sampling.max_tokens: found {config.sampling.max_tokens}, the policy's context is {context} tokens "
                "with the prompt; leave room for it"
            )


def _context_length(file: Path) -> int | None:
    """What the model's configuration says of its context, in tokens; None where it does not."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    known = [found.get(key) for key in ("max_position_embeddings", "n_positions")] if isinstance(found, dict) else []
    return next((length for length in known if isinstance(length, int)), None)


def _training(config: RunConfig) -> Iterator[str]:
    training = config.training
    if training.group_size == 1:
        yield "training.group_size: found 1, but a group's advantage needs at least 2 samples to compare"
    if training.max_lag == 0 and training.batches_ahead > 1:
        yield (
            f"training.batches_ahead: found {training.batches_ahead} with max_lag 0, but a batch that waits for the "
            "learner is one version old when it is trained; use batches_ahead 1 or a larger max_lag"
        )


def _bus(config: RunConfig) -> Iterator[str]:
    bus = config.bus
    if bus.url == EMBEDDED:
        if bus.credentials is not None:
            yield "bus.credentials: excludes bus.url = 'embedded': the embedded server makes its own credentials"
        if bus.store_max_bytes < reserved_bytes():
            yield (
                f"bus.store_max_bytes: found {bus.store_max_bytes}, but the streams of a run are bounded at "
                f"{reserved_bytes()} bytes together; use at least that"
            )
        return
    for knob in sorted({"port", "store_max_bytes", "sync"} & bus.model_fields_set):
        yield f"bus.{knob}: excludes bus.url = {bus.url!r}: it is a setting of the embedded server"
    if bus.credentials is not None and not Path(bus.credentials).is_file():
        yield f"bus.credentials: there is no file {bus.credentials}"


def _weights(config: RunConfig) -> Iterator[str]:
    if not any(domain.weight > 0 for domain in config.domains.values()):
        yield f"domains: every weight is 0 ({_listed(tuple(config.domains))}), so nothing would be trained"


def _domains(config: RunConfig) -> Iterator[str]:
    for name, domain in config.domains.items():
        yield from _domain(name, domain, config)


def _domain(name: str, domain: DomainSection, config: RunConfig) -> Iterator[str]:
    where = f"domains.{name}"
    if domain.source is not None:
        for knob in ("files", "eval_files"):
            if getattr(domain, knob):
                yield f"{where}.{knob}: excludes {where}.source: a source makes training and held-out tasks itself"
        if domain.verifier is not None:
            yield f"{where}.verifier: excludes {where}.source: tasks of a source bring their own verifier"
        yield from _source(f"{where}.source", domain.source)
    for file in (*domain.files, *domain.eval_files):
        if not Path(file).is_file():
            yield f"{where}: there is no file {file}"
    if domain.max_tokens is not None and domain.max_tokens > config.sampling.max_tokens:
        yield (
            f"{where}.max_tokens: found {domain.max_tokens}, but sampling.max_tokens is "
            f"{config.sampling.max_tokens} and bounds every domain"
        )
    if domain.verifier is not None:
        yield from _verifier(f"{where}.verifier", domain.verifier, config.run.trust_code)


def _source(where: str, section: SourceSection) -> Iterator[str]:
    options = {name: value for name, value in section.options.items() if name != "level"}
    try:
        TaskSource(section.name, options)
    except UserError as error:
        yield f"{where}: {error}"


def _verifier(where: str, verifier: VerifierSection, trust_code: bool) -> Iterator[str]:
    kind, known = verifier.kind, verifier_kinds()
    if kind not in known:
        yield f"{where}.kind: found {kind!r}, but the verifiers here are {_listed(tuple(sorted(known)))}"
    elif kind == PYTHON_VERIFIER and not trust_code:
        yield (
            f"{where}.kind: found 'python', which runs your code unsandboxed in the verifier; "
            "set run.trust_code = true if you mean it"
        )
    else:
        problem: str | None = importlib.import_module("actors.verifiers.registry").options_problem(
            kind, verifier.options
        )
        if problem is None and kind == PYTHON_VERIFIER:
            problem = _module_problem(str(verifier.options["function"]))
        if problem is not None:
            yield f"{where}.options: {problem}"


def _module_problem(function: str) -> str | None:
    """Whether the module of ``MODULE:FUNCTION`` is where verifiers will look for it. None of its code is run."""
    module, _, name = function.partition(":")
    top = module.partition(".")[0]
    if not name or find_spec(top) is not None or PathFinder.find_spec(top, [str(Path.cwd())]) is not None:
        return None
    return f"function: found {function!r}, but there is no module {top!r} in {Path.cwd()} or among the installed ones"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)


_RULES: tuple[Callable[[RunConfig], Iterator[str]], ...] = (
    _policy,
    _training,
    _bus,
    _weights,
    _domains,
)
