"""The live view of a run: a pure function from facts to something that rich can draw, at any width from 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from messages import Evaluation
from runtime.config import ACTOR_KINDS
from runtime.facts import ActorFacts, DomainFacts, Facts
from runtime.ledger import Ledger, current

NARROW = 100
FEWEST_DOMAINS = 3
OTHER_LINES = 14
"""Lines that are neither a domain's nor an actor's, the mean and a last line for the shell included."""
STATE_STYLES = {
    "running": "green",
    "starting": "cyan",
    "paused": "yellow",
    "draining": "yellow",
    "stopped": "dim",
    "silent": "bold red",
}
NOTHING = "·"
SCORES = ("sampled_accuracy", "greedy_accuracy")


@dataclass(frozen=True)
class View:
    """What the board shows beside the facts.

    Attributes:
        run: name of the run.
        now_s: Unix time.
        elapsed_s: since the launcher's start.
        max_steps: goal in weight versions; 0 is none.
        max_lag: bound of the lag; None where it is not known.
        phase: such as "training" or "draining".
        url: where the bus is.
        restarts: by process name.
        note: a last line, such as what Ctrl-C does.
    """

    run: str
    now_s: float
    elapsed_s: float = 0.0
    max_steps: int = 0
    max_lag: int | None = None
    phase: str = "running"
    url: str = ""
    restarts: Mapping[str, int] = field(default_factory=dict)
    note: str = ""


def board(facts: Facts, view: View, width: int = 120, height: int = 60) -> RenderableType:
    """The whole view, for a terminal of ``width`` columns and ``height`` lines; domains that do not fit are counted."""
    narrow = width < NARROW
    parts: list[RenderableType] = [_headline(facts, view)]
    if facts.domains:
        room = max(FEWEST_DOMAINS, height - OTHER_LINES - len(facts.actors))
        parts += ["", _domains(facts, narrow, room)]
    if facts.actors:
        parts += ["", _actors(facts, view, narrow)]
    parts += ["", _flow(facts, view)]
    if facts.alerts:
        last = facts.alerts[-1]
        parts.append(Text(f"{last.severity}: {last.summary}", style="yellow", no_wrap=True, overflow="ellipsis"))
    if view.note:
        parts.append(Text(view.note, style="dim"))
    return Group(*parts)


def log_fields(facts: Facts, view: View) -> dict[str, Any]:
    """The same in the few figures of a log line, for when there is no terminal."""
    ledger = current(facts)
    fields: dict[str, Any] = {"phase": view.phase, "elapsed_s": round(view.elapsed_s, 1), "version": facts.version}
    if view.max_steps:
        fields["max_steps"] = view.max_steps
    if facts.last_step is not None:
        fields |= {"lag_mean": round(facts.lag.mean, 2), "lag_max": facts.lag.most}
    for kind in ("generator", "learner"):
        rate = _live_rate(facts, kind)
        if rate is not None:
            fields[f"{kind}_tokens_per_s"] = round(rate)
    if ledger is not None:
        fields |= {
            "dispatched": ledger.dispatched,
            "trained": ledger.trained,
            "dropped": ledger.dropped_total,
            "dead": ledger.dead,
            "open": ledger.open,
            "law_closes": ledger.closes,
        }
    scores = {name: _value(domain.newest(), SCORES[0]) for name, domain in sorted(facts.domains.items())}
    known = {name: round(score, 3) for name, score in scores.items() if score is not None}
    return fields | ({"evaluation": known} if known else {})


def _headline(facts: Facts, view: View) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"busrl {view.run}", style="bold")
    text.append(f"  {view.phase}", style="cyan")
    goal = f"/{view.max_steps}" if view.max_steps else ""
    text.append(f"  version {facts.version}{goal}", style="bold green")
    text.append(f"  {_duration(view.elapsed_s)}")
    if view.url:
        text.append(f"  {view.url}", style="dim")
    return text


def _domains(facts: Facts, narrow: bool, room: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1 if narrow else 2, 0, 0), header_style="bold")
    table.add_column("domain", no_wrap=True, max_width=22 if narrow else 32)
    for heading in ("sampled", "greedy", "reward", "trained"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("at", justify="right", no_wrap=True)
    if not narrow:
        table.add_column("samples", justify="right", no_wrap=True)
        table.add_column("dropped", no_wrap=True, overflow="ellipsis", max_width=36)
    names = sorted(facts.domains)
    for name in names if len(names) <= room else names[: room - 1]:
        table.add_row(*_domain_row(name, facts.domains[name], narrow))
    if len(names) > room:
        table.add_row(Text(f"... and {len(names) - room + 1} more", style="dim"))
    if len(names) > 1:
        table.add_row(*_mean_row(list(facts.domains.values())), style="bold")
    return table


def _domain_row(name: str, domain: DomainFacts, narrow: bool) -> list[str]:
    newest = domain.newest()
    row = [
        name,
        _from_to(domain, "sampled_accuracy"),
        _from_to(domain, "greedy_accuracy"),
        _number(domain.reward),
        _percent(domain.trained_share),
        f"v{newest.version}" if newest else NOTHING,
    ]
    return row if narrow else [*row, _count(domain.trained), _reasons(domain.dropped)]


def _mean_row(domains: list[DomainFacts]) -> list[str]:
    scores = [_span(*(_mean_of(ends) for ends in zip(*_ends(domains, score), strict=True))) for score in SCORES]
    return ["mean", *scores, _number(_mean_of([domain.reward for domain in domains]))]


def _ends(domains: list[DomainFacts], score: str) -> list[tuple[float | None, float | None]]:
    """First and newest value per domain that has both."""
    found = [(_value(domain.before(), score), _value(domain.newest(), score)) for domain in domains]
    return [ends for ends in found if None not in ends] or [(None, None)]


def _actors(facts: Facts, view: View, narrow: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1 if narrow else 2, 0, 0), header_style="bold")
    table.add_column("actor", no_wrap=True, max_width=20)
    table.add_column("state", no_wrap=True)
    for heading in ("version", "tok/s", "busy", "wait", "now", "restarts"):
        table.add_column(heading, justify="right", no_wrap=True)
    if not narrow:
        table.add_column("handled", justify="right", no_wrap=True)
        table.add_column("memory", justify="right", no_wrap=True)
    order = {kind: place for place, kind in enumerate(ACTOR_KINDS)}
    for name, actor in sorted(facts.actors.items(), key=lambda item: (order.get(item[1].beat.kind, 99), item[0])):
        table.add_row(*_actor_row(name, actor, view, narrow))
    return table


def _actor_row(name: str, actor: ActorFacts, view: View, narrow: bool) -> list[str | Text]:
    state = actor.state(view.now_s)
    version, rate = actor.gauge("version"), actor.gauge("tokens_per_s")
    busy, waiting = actor.total("busy_s"), actor.total("waiting_s")
    share = busy / (busy + waiting) if busy + waiting > 0 else actor.gauge("busy_share")
    restarts = max(view.restarts.get(name, 0), actor.lives - 1)
    row: list[str | Text] = [
        name,
        Text(state, style=STATE_STYLES.get(state, "")),
        NOTHING if version is None else f"{version:.0f}",
        NOTHING if rate is None else _count(rate),
        _percent(share),
        _percent(None if share is None else 1 - share),
        str(actor.beat.in_flight),
        Text(str(restarts), style="red" if restarts else "dim"),
    ]
    if not narrow:
        row += [_count(actor.total("handled")), _size(actor.beat.rss_bytes)]
    return row


def _flow(facts: Facts, view: View) -> Group:
    lines = []
    if facts.queues:
        depths = "  ".join(f"{name} {queue.messages}" for name, queue in facts.queues.items())
        lines.append(_line("queues", depths))
    if facts.last_step is not None:
        step = facts.last_step
        lag = f"{step.lag_mean:.2f} now, {facts.lag.mean:.2f} mean, {facts.lag.most} max"
        lag += f", bound {view.max_lag}" if view.max_lag is not None else ""
        lines.append(_line("lag", lag))
    ledger = current(facts)
    if ledger is not None:
        lines.append(_ledger_line(ledger))
    return Group(*lines)


def _ledger_line(ledger: Ledger) -> Text:
    text = Text(f"{'ledger':<8}", style="bold")
    text.append("closes  " if ledger.closes else "DOES NOT CLOSE  ", style="green" if ledger.closes else "bold red")
    text.append(
        f"{ledger.dispatched} = {ledger.trained} trained + {ledger.dropped_total} dropped + {ledger.dead} dead "
        f"+ {ledger.open} open",
        style="not bold",
    )
    return text


def _line(title: str, content: str) -> Text:
    text = Text()
    text.append(f"{title:<8}", style="bold")
    text.append(content)
    return text


def _live_rate(facts: Facts, kind: str) -> float | None:
    rates = [rate for actor in facts.of_kind(kind) if (rate := actor.gauge("tokens_per_s")) is not None]
    return sum(rates) if rates else None


def _from_to(domain: DomainFacts, score: str) -> str:
    return _span(_value(domain.before(), score), _value(domain.newest(), score))


def _span(begin: float | None, now: float | None) -> str:
    if begin is None or now is None:
        return _number(now if now is not None else begin)
    return f"{begin:.2f} → {now:.2f}"


def _value(evaluation: Evaluation | None, score: str) -> float | None:
    value: float | None = getattr(evaluation, score) if evaluation else None
    return value


def _mean_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _reasons(counts: Mapping[str, int]) -> str:
    found = [f"{name} {n}" for name, n in sorted(counts.items()) if n]
    return ", ".join(found) or NOTHING


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.0f}%"


def _count(value: float) -> str:
    for bound, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= bound:
            scale = 1e3 if unit == "k" else bound
            return f"{value / scale:.1f}{unit}"
    return f"{value:.0f}"


def _size(value: int) -> str:
    return f"{value / 2**30:.1f}G" if value >= 2**30 else f"{value / 2**20:.0f}M"


def _duration(seconds: float) -> str:
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
