"""A run file is read whole, or refused with one line that names file, key, what was found and what would be right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.config import ACTOR_KINDS, ActorSection, RunConfig, load
from runtime.errors import ConfigError
from runtime.runcheck import reserved_bytes
from runtime.runfile import from_json, parse, run_class, section_class, to_json

MINIMAL = """
[run]
name = "one"
[policy]
path = "policy"
[domains.sums]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "config.json").write_text("{}")
    (tmp_path / "train.jsonl").write_text("")
    return tmp_path


def refused(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, "run.toml", folder)
    message = str(caught.value)
    assert message.startswith("run.toml: ")
    assert "\n" not in message
    return message.removeprefix("run.toml: ")


def test_a_minimal_file_has_defaults_for_everything_else(folder: Path):
    config = parse(MINIMAL, "run.toml", folder)
    assert (config.training.group_size, config.training.max_lag, config.sampling.temperature) == (16, 2, 1.0)
    assert config.counts() == dict.fromkeys(ACTOR_KINDS, 1)


def test_every_actor_has_its_own_section_class(folder: Path):
    config = parse(MINIMAL, "run.toml", folder)
    for kind in ACTOR_KINDS:
        assert type(config.section(kind)) is section_class(kind)
        assert issubclass(section_class(kind), ActorSection)


def test_paths_are_relative_to_the_file_and_absolute_once_read(folder: Path):
    (folder / "run.toml").write_text(MINIMAL + 'files = ["train.jsonl"]\n')
    config = load(folder / "run.toml")
    assert config.policy.path == str(folder / "policy")
    assert config.domains["sums"].files == (str(folder / "train.jsonl"),)


def test_what_was_resolved_reads_back_the_same(folder: Path):
    text = MINIMAL + 'files = ["train.jsonl"]\n[generator]\ncount = 3\n[bus]\nurl = "nats://there:4222"\n'
    config = parse(text, "run.toml", folder)
    again = from_json(to_json(config))
    assert again == config
    assert again.generator.count == 3
    assert to_json(again) == to_json(config)


@given(max_lag=st.integers(0, 50), groups=st.integers(1, 999), seed=st.integers(0, 2**40), batches=st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_resolving_is_lossless_for_any_numbers(max_lag: int, groups: int, seed: int, batches: int):
    tables = {
        "run": {"name": "x", "seed": seed},
        "policy": {"path": "/p"},
        "domains": {"d": {}},
        "training": {"max_lag": max_lag, "groups_per_batch": groups, "batches_ahead": batches},
    }
    config = run_class().model_validate(tables)
    assert from_json(to_json(config)) == config


def test_a_missing_file_says_how_to_write_one(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such file; `busrl init"):
        load(tmp_path / "run.toml")


def test_a_folder_is_not_a_run_file(tmp_path: Path):
    with pytest.raises(ConfigError, match="can not be read"):
        load(tmp_path)


def test_a_file_that_is_not_toml_is_refused_with_its_line(folder: Path):
    assert "line 3" in refused(folder, '[run]\nname = "x"\nseed = = 3\n')


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[training]\nmax_lagg = 2", "unknown key training.max_lagg: did you mean max_lag?"),
        ("[trainig]\nmax_lag = 2", "unknown key trainig: did you mean training?"),
        ("[learner]\ncuont = 1", "unknown key learner.cuont: did you mean count?"),
        ("[domains.other]\nwieght = 1.0", "unknown key domains.other.wieght: did you mean weight?"),
        ('[domains.o.source]\nname = "a"\nn_trian = 3', "unknown key domains.o.source.n_trian: did you mean n_train?"),
        ("[telemetry]\nzzz = 1", "unknown key telemetry.zzz: [telemetry] takes traces, sample_ratio, interval_s"),
    ],
)
def test_an_unknown_key_is_refused_with_what_is_close(folder: Path, line: str, expected: str):
    assert refused(folder, f"{MINIMAL}{line}\n") == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('[training]\nmax_lag = "two"', 'training.max_lag: found "two", but it should be a valid integer'),
        ('[training]\nmax_lag = "2"', 'training.max_lag: found "2", but it should be a valid integer'),
        ("[training]\nmax_lag = true", "training.max_lag: found true, but it should be a valid integer"),
        ("[training]\nmax_lag = -1", "training.max_lag: found -1, but it should be greater than or equal to 0"),
        ("[sampling]\ntemperature = inf", "sampling.temperature: found"),
        ("[generator]\ncount = 1.5", "generator.count: found 1.5, but it should be a valid integer"),
        ("[domains.Bad]\nweight = 1.0", 'domains.Bad: found "Bad", but it'),
        ('[bus]\nurl = "http://x"', 'bus.url: found "http://x", but it should match ^'),
        ("training = 3", "domains.sums.training"),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_found(folder: Path, line: str, expected: str):
    assert expected in refused(folder, f"{MINIMAL}{line}\n")


def test_a_section_that_is_no_table_is_refused(folder: Path):
    assert refused(folder, f"training = 3\n{MINIMAL}").startswith("training: found 3, but it should be")


def test_a_missing_section_and_a_missing_key_are_named_with_what_they_are_for(folder: Path):
    assert refused(folder, MINIMAL.replace('[policy]\npath = "policy"', "")).startswith("missing section policy: The")
    assert refused(folder, MINIMAL.replace('name = "one"', "")).startswith("missing key run.name: name of its folder")


def test_a_file_without_a_domain_is_refused(folder: Path):
    assert refused(folder, MINIMAL.replace("[domains.sums]", "")).startswith("missing section domains: [domains.NAME]")
    assert refused(folder, MINIMAL.replace("[domains.sums]", "[domains]")).startswith("domains: found {}")


def test_domains_whose_weights_are_all_zero_are_refused(folder: Path):
    assert "every weight is 0 (sums)" in refused(folder, f"{MINIMAL}weight = 0.0\n")


def test_a_group_of_one_has_nothing_to_compare(folder: Path):
    assert refused(folder, f"{MINIMAL}[training]\ngroup_size = 1\n").startswith("training.group_size: found 1")


def test_synchronous_training_excludes_batches_ahead(folder: Path):
    text = f"{MINIMAL}[training]\nmax_lag = 0\nbatches_ahead = 2\n"
    assert "use batches_ahead 1" in refused(folder, text)
    assert parse(text.replace("batches_ahead = 2", "batches_ahead = 1"), "run.toml", folder).training.max_lag == 0


def test_a_policy_that_is_no_model_folder_is_refused(folder: Path):
    assert "there is no folder" in refused(folder, MINIMAL.replace('"policy"', '"nowhere"'))
    (folder / "policy" / "config.json").unlink()
    assert "is not a Hugging Face model folder" in refused(folder, MINIMAL)


def test_a_singleton_actor_can_not_be_several(folder: Path):
    assert refused(folder, f"{MINIMAL}[learner]\ncount = 2\n").startswith("learner.count: found 2, but")
    assert parse(f"{MINIMAL}[verifier]\ncount = 2\n", "run.toml", folder).verifier.count == 2


@pytest.mark.parametrize("knob", ["port = 4222", 'sync = "always"', "store_max_bytes = 99999999999"])
def test_a_knob_of_the_embedded_server_excludes_an_external_bus(folder: Path, knob: str):
    assert "excludes bus.url" in refused(folder, f'{MINIMAL}[bus]\nurl = "nats://there:4222"\n{knob}\n')


def test_a_source_excludes_files_and_a_verifier(folder: Path):
    source = f'{MINIMAL}source = {{ name = "arithmetic" }}\n'
    assert "files: excludes domains.sums.source" in refused(folder, f'{source}files = ["train.jsonl"]\n')
    assert "verifier: excludes domains.sums.source" in refused(folder, f'{source}verifier = {{ kind = "exact" }}\n')


def test_a_missing_task_file_is_named(folder: Path):
    assert refused(folder, f'{MINIMAL}files = ["none.jsonl"]\n') == (
        f"domains.sums: there is no file {folder / 'none.jsonl'}"
    )


def test_an_unknown_verifier_is_refused_with_the_known_ones(folder: Path):
    message = refused(folder, f'{MINIMAL}verifier = {{ kind = "exakt" }}\n')
    assert "found 'exakt'" in message
    assert "exact" in message
    assert "numeric" in message


def test_a_python_verifier_needs_trust(folder: Path):
    text = f'{MINIMAL}verifier = {{ kind = "python", options = {{ function = "m:f" }} }}\n'
    assert "run.trust_code = true" in refused(folder, text)
    trusted = text.replace('name = "one"', 'name = "one"\ntrust_code = true').replace("m:f", "json:loads")
    config = parse(trusted, "run.toml", folder)
    assert config.domains["sums"].verifier is not None


def test_a_python_verifier_is_looked_for_where_the_run_is_started(folder: Path, monkeypatch: pytest.MonkeyPatch):
    text = MINIMAL.replace('name = "one"', 'name = "one"\ntrust_code = true')
    text += 'verifier = { kind = "python", options = { function = "my_scores:score" } }\n'
    monkeypatch.chdir(folder)
    assert f"there is no module 'my_scores' in {folder}" in refused(folder, text)
    (folder / "my_scores.py").write_text("raise SystemExit('checking a run file runs no code of the user')\n")
    assert parse(text, "run.toml", folder).domains["sums"].verifier is not None


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('{ name = "arithmetik" }', "there is no task source 'arithmetik', use one of"),
        ('{ name = "reasoning-gym", options = { name = "nothing" } }', "reasoning-gym dataset 'nothing'"),
        ('{ name = "arithmetic", options = { digits = 3 } }', "digits"),
    ],
)
def test_a_source_that_can_not_be_opened_is_refused(folder: Path, source: str, expected: str):
    message = refused(folder, f"{MINIMAL}\n[domains.other]\nsource = {source}\n")
    assert message.startswith("domains.other.source: ")
    assert expected in message


def test_a_store_smaller_than_its_streams_is_refused(folder: Path):
    assert str(reserved_bytes()) in refused(folder, f"{MINIMAL}[bus]\nstore_max_bytes = 1000\n")


def test_a_domain_can_not_raise_the_bound_of_all_domains(folder: Path):
    assert "sampling.max_tokens is 8" in refused(folder, f"{MINIMAL}max_tokens = 9\n[sampling]\nmax_tokens = 8\n")


def test_several_problems_are_counted_after_the_first(folder: Path):
    assert refused(folder, f"{MINIMAL}[training]\na = 1\nb = 2\n").endswith("(and 1 more)")


def test_every_field_says_what_it_is():
    def undescribed(model: type, where: str) -> list[str]:
        return [f"{where}.{name}" for name, field in model.model_fields.items() if not field.description]

    sections = {kind: section_class(kind) for kind in ACTOR_KINDS}
    for name, field in RunConfig.model_fields.items():
        if name not in sections and name != "domains":
            sections[name] = field.annotation
    assert [bad for name, model in sections.items() for bad in undescribed(model, name)] == []


def test_reading_a_run_file_imports_no_torch(folder: Path):
    (folder / "run.toml").write_text(f'{MINIMAL}verifier = {{ kind = "exact" }}\n')
    program = (
        "import sys; from runtime.config import load; load(sys.argv[1]); "
        "print([name for name in ('torch', 'transformers', 'nats') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, folder / "run.toml"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*/*run*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_shipped_run_file_is_right(path: Path):
    """A policy that is fetched or trained first need not be there."""
    problem = ""
    try:
        load(path)
    except ConfigError as error:
        problem = str(error)
    assert not problem or ("policy.path" in problem and "(and" not in problem)


def test_the_demo_has_its_policy():
    from runtime.cli.up import demo_file

    assert load(demo_file()).run.name == "demo"


def test_samples_that_fill_the_whole_context_are_refused(folder: Path) -> None:
    (folder / "policy" / "config.json").write_text('{"max_position_embeddings": 64}')
    message = refused(folder, f"{MINIMAL}[sampling]\nmax_tokens = 64\n")
    assert message.startswith("sampling.max_tokens: found 64, the policy's context is 64 tokens")
