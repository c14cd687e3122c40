"""A checkpoint resumes bit for bit, is whole or passed over, and never loads into another policy."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys

import pytest
import structlog
import torch

from actors.learner.checkpoint import CheckpointError, CheckpointStore
from actors.learner.config import LearnerConfig
from actors.learner.trainer import Trainer
from actors.policy.model import load_policy

FILES = ("model.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json", "digests.json")


def trainer(policy, seed=0) -> Trainer:
    return Trainer(policy, LearnerConfig(), seed)


@pytest.fixture
def learner(policy, make_samples) -> Trainer:
    made = trainer(policy)
    made.step(make_samples(policy, 4))
    return made


@pytest.fixture
def store(tmp_path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", keep=2)


def save(store, learner, **extra):
    return store.save(learner.policy, learner.state(), extra)


def test_a_resumed_learner_takes_bit_for_bit_the_same_steps(store, learner, make_policy, make_samples):
    batches = [make_samples(learner.policy, 5, seed=seed) for seed in (1, 2, 3)]
    learner.step(batches[0])
    save(store, learner)
    other = trainer(make_policy(seed=9), seed=9)
    other.restore(store.load_latest(other.policy).state)
    for batch in batches[1:]:
        expected, found = learner.step(batch), other.step(batch)
        assert (found.loss, found.grad_norm, found.lr) == (expected.loss, expected.grad_norm, expected.lr)
    tensors = other.policy.named_tensors()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in learner.policy.named_tensors().items())


def test_random_numbers_go_on_where_they_were(store, learner):
    save(store, learner)
    expected = torch.rand(3)
    torch.manual_seed(99)
    learner.restore(store.load_latest(learner.policy).state)
    assert torch.equal(torch.rand(3), expected)


def test_counters_and_what_the_caller_added_come_back(store, learner, make_policy):
    learner.step([])
    save(store, learner, epoch=3, consumed=["g1", "g2"], forks={"2": 17})
    found = store.load_latest(learner.policy)
    assert found.extra == {"epoch": 3, "consumed": ["g1", "g2"], "forks": {"2": 17}}
    other = trainer(make_policy())
    other.restore(found.state)
    assert (other.version, other.optimizer_steps, other.skips) == (1, 1, learner.skips)


def test_there_is_nothing_to_load_before_the_first_save(store, policy):
    assert store.load_latest(policy) is None


def test_only_the_newest_are_kept(store, learner):
    for number in range(4):
        save(store, learner, number=number)
    assert len(store.paths()) == 2
    assert store.load_latest(learner.policy).extra == {"number": 3}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_torn_checkpoint_is_passed_over_with_a_warning(store, learner, name, damage):
    save(store, learner, number=1)
    path = save(store, learner, number=2) / name
    data = path.read_bytes()
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    else:
        path.unlink()
    with structlog.testing.capture_logs() as logs:
        found = store.load_latest(learner.policy)
    assert found.extra == {"number": 1}
    assert [entry["event"] for entry in logs] == ["checkpoint.torn"]
    assert len(found.torn) == 1


def test_a_torn_checkpoint_does_not_take_the_place_of_a_whole_one(store, learner):
    save(store, learner, number=1)
    (save(store, learner, number=2) / "model.safetensors").unlink()
    store.load_latest(learner.policy)
    save(store, learner, number=3)
    numbers = [json.loads((path / "state.json").read_text())["extra"]["number"] for path in store.paths()]
    assert numbers == [1, 3]


def test_when_none_is_whole_a_run_does_not_quietly_start_over(store, learner):
    (save(store, learner) / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"none of 1 checkpoints is whole; .*state\.json is missing"):
        store.load_latest(learner.policy)


def test_what_a_killed_writer_left_is_ignored_and_swept(store, learner):
    save(store, learner, number=1)
    left = store.folder / ".writing-dead"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    assert store.load_latest(learner.policy).extra == {"number": 1}
    save(store, learner, number=2)
    assert not left.exists()


def test_a_failed_save_leaves_the_older_checkpoint(store, learner):
    save(store, learner, number=1)
    with pytest.raises(CheckpointError, match="must be JSON"):
        save(store, learner, bad=object())
    assert [path.name for path in store.folder.iterdir()] == [store.paths()[0].name]
    assert store.load_latest(learner.policy).extra == {"number": 1}


def test_a_checkpoint_of_another_policy_is_a_clear_error(store, learner, make_policy):
    save(store, learner)
    with pytest.raises(CheckpointError, match=r"belongs to another policy .* another model size"):
        store.load_latest(make_policy(hidden=32))


def test_a_checkpoint_of_another_tokenizer_with_as_many_ids_is_refused(store, make_policy, make_samples):
    learner = trainer(make_policy(phrases=("ab",)))
    save(store, learner)
    with pytest.raises(CheckpointError, match="another tokenizer"):
        store.load_latest(make_policy(phrases=("cd",)))


def test_a_checkpoint_is_a_model_folder_as_well(store, learner):
    policy = load_policy(save(store, learner), "cpu")
    tensors = learner.policy.named_tensors()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in policy.named_tensors().items())


def test_nothing_in_a_checkpoint_is_pickled(store, learner):
    suffixes = {path.suffix for path in save(store, learner).iterdir()}
    assert suffixes <= {".safetensors", ".json", ".jinja"}


def killed_at(file_operation: int, work) -> bool:
    """Run ``work`` in a fork that SIGKILLs itself at its n-th file operation; whether it came so far."""
    child = os.fork()
    if child == 0:
        counted = 0

        def count(event: str, _: object) -> None:
            nonlocal counted
            counted += event == "open" or event.startswith(("os.", "shutil."))
            if counted == file_operation:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        work()
        os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def test_a_save_killed_at_any_file_operation_leaves_only_whole_checkpoints(store, learner):
    save(store, learner)
    operation = 1
    while killed_at(operation, lambda: save(store, learner)):
        assert store.load_latest(learner.policy).torn == ()
        operation += 2
    assert operation > 20, "a save makes many file operations"


def test_a_disk_without_room_is_an_error_of_the_disk_and_older_checkpoints_stand(store, learner):
    first = save(store, learner)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match=r"(?i)large|I/O"):
            save(store, learner)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert store.paths() == [first]
