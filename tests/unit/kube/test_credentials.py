from __future__ import annotations

import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from reactor.errors import ConfigError
from reactor.kube.client import ApiClient
from reactor.kube.credentials import Credentials, credentials_of, run_exec, tls_context
from reactor.kube.errors import UnauthorizedError, UnreachableError
from reactor.kube.kubeconfig import Access, Exec
from tests.support.api_faults import quick_backoff


class _Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def _replace(path: Path, text: str) -> None:
    """Replace a file as a kubelet does it: another inode."""
    beside = path.with_name("new")
    beside.write_text(text)
    beside.replace(path)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keys")
    for name in ("one", "two"):
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
                *("-nodes", "-days", "2"),
                *f"-subj /CN={name} -addext subjectAltName=IP:127.0.0.1".split(),
                *f"-keyout {name}.key -out {name}.crt".split(),
            ],
            cwd=directory,
            check=True,
            capture_output=True,
        )
    return directory


_TOKEN = "abc"  # noqa: S105 - of no server


async def test_a_token_is_read_again_once_a_minute_and_not_for_each_request(tmp_path: Path) -> None:
    token, clock = tmp_path / "token", _Clock()
    token.write_text("first\n")
    credentials = Credentials(
        lambda: Access(server="http://127.0.0.1:1", token_path=str(token)), clock_seconds=clock
    )
    assert "first" == (await credentials.session()).token
    _replace(token, "second")
    clock.seconds += 59
    assert "first" == (await credentials.session()).token
    clock.seconds += 2
    assert "second" == (await credentials.session()).token


async def test_distrusted_credentials_are_read_again_at_once(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    credentials = Credentials(lambda: Access(server="http://127.0.0.1:1", token_path=str(token)))
    await credentials.session()
    token.write_text("second")
    credentials.distrust()
    assert "second" == (await credentials.session()).token


async def test_a_token_that_vanishes_leaves_the_last_one_in_force_and_a_problem(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    credentials = Credentials(lambda: Access(server="http://127.0.0.1:1", token_path=str(token)))
    await credentials.session()
    token.unlink()
    credentials.distrust()
    assert "first" == (await credentials.session()).token
    assert f"{token}: No such file or directory" == credentials.problem


async def test_credentials_that_never_could_be_read_say_why(tmp_path: Path) -> None:
    credentials = Credentials(lambda: Access(server="http://127.0.0.1:1", token_path=str(tmp_path / "gone")))
    with pytest.raises(UnauthorizedError, match="gone: No such file"):
        await credentials.session()
    (tmp_path / "gone").write_text("")
    with pytest.raises(UnauthorizedError, match="an empty file"):
        await credentials.session()


async def test_a_changed_kubeconfig_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    text = (
        "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
        "clusters: [{name: c, cluster: {server: 'http://SERVER'}}]\nusers: [{name: u, user: {token: t}}]\n"
    )
    path.write_text(text.replace("SERVER", "127.0.0.1:1"))
    credentials = credentials_of(str(path))
    assert "http://127.0.0.1:1" == (await credentials.session()).server
    _replace(path, text.replace("SERVER", "127.0.0.1:2"))
    credentials.distrust()
    assert "http://127.0.0.1:2" == (await credentials.session()).server


async def test_the_tls_context_is_renewed_only_when_its_files_change(keys: Path, tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    authority.write_bytes((keys / "one.crt").read_bytes())
    credentials = Credentials(
        lambda: Access(server="https://a", authority_path=str(authority), token="t" * 3)
    )
    first = (await credentials.session()).tls
    credentials.distrust()
    assert first is (await credentials.session()).tls
    _replace(authority, (keys / "two.crt").read_text())
    credentials.distrust()
    assert first is not (await credentials.session()).tls


def test_wrong_certificates_are_named_by_their_files(tmp_path: Path, keys: Path) -> None:
    (tmp_path / "bad.crt").write_text("nothing")
    with pytest.raises(OSError, match="certificate") as caught:
        tls_context(Access(server="https://a", authority_path=str(tmp_path / "bad.crt")))
    assert str(tmp_path / "bad.crt") == caught.value.filename
    with pytest.raises(OSError, match=r".") as caught:
        tls_context(
            Access(server="https://a", certificate_path=str(keys / "one.crt"), key_path=str(keys / "two.key"))
        )
    assert str(keys / "one.crt") == caught.value.filename


async def test_the_server_is_checked_and_shown_our_certificate_and_memory_files_are_closed(
    keys: Path,
) -> None:
    def pem(name: str) -> bytes:
        return (keys / name).read_bytes()

    before = set(os.listdir("/proc/self/fd"))
    trusted = Access(
        server="", authority_pem=pem("one.crt"), certificate_pem=pem("two.crt"), key_pem=pem("two.key")
    )
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(keys / "one.crt", keys / "one.key")
    serving.load_verify_locations(keys / "two.crt")
    serving.verify_mode = ssl.CERT_REQUIRED

    async def answer(stream: trio.SSLStream[trio.SocketStream]) -> None:
        try:
            await stream.receive_some(65536)
            await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        except (trio.BrokenResourceError, ssl.SSLError):
            pass

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_ssl_over_tcp, answer, 0, serving)
        port = listeners[0].transport_listener.socket.getsockname()[1]
        url = f"https://127.0.0.1:{port}"

        async def asked(access: Access) -> object:
            client = ApiClient(Credentials(lambda: access), backoff=quick_backoff)
            try:
                return await client.get("/version")
            finally:
                client.close()

        assert {} == await asked(Access(**{**_fields(trusted), "server": url}))
        with pytest.raises(UnreachableError, match="certificate verify failed"):
            await asked(Access(server=url, authority_pem=pem("two.crt")))
        nursery.cancel_scope.cancel()
    assert before >= {fd for fd in os.listdir("/proc/self/fd") if _is_memory_file(fd)}


def _fields(access: Access) -> dict[str, object]:
    return {name: getattr(access, name) for name in Access.__slots__}


def _is_memory_file(fd: str) -> bool:
    try:
        return "reactor-tls" in os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return False


def _command(text: str) -> Exec:
    return Exec(command=sys.executable, args=("-c", text))


def test_a_command_gives_a_token_and_its_end() -> None:
    text = (
        "import json, os; asked = json.loads(os.environ['KUBERNETES_EXEC_INFO']);"
        "print(json.dumps({'kind': asked['kind'], 'status':"
        "{'token': 'abc', 'expirationTimestamp': '2030-01-01T00:00:00Z'}}))"
    )
    assert ("abc", 1893456000.0) == run_exec(_command(text))


def test_a_command_finds_its_own_modules_and_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/where/this/program/is")
    text = (
        "import json, os; given = os.environ.get('PYTHONPATH', 'none');"
        "print(json.dumps({'status': {'token': given}}))"
    )
    assert ("none", None) == run_exec(_command(text))
    of_its_own = Exec(command=sys.executable, args=("-c", text), env={"PYTHONPATH": "/its/own"})
    assert ("/its/own", None) == run_exec(of_its_own)


@pytest.mark.parametrize(
    ("server", "is_taken"),
    [
        ("http://10.0.0.1:8080", False),
        ("http://localhost.example:80", False),
        ("http://127.0.0.1:8001", True),
        ("http://[::1]:8001", True),
        ("http://localhost:8001", True),
        ("https://10.0.0.1:6443", True),
    ],
)
async def test_a_token_is_sent_in_clear_to_this_machine_alone(server: str, *, is_taken: bool) -> None:
    access = Access(server=server, token=_TOKEN)
    if is_taken:
        assert _TOKEN == (await Credentials(lambda: access).session()).token
        return
    with pytest.raises(UnauthorizedError, match=r"accepted: https, or this machine"):
        await Credentials(lambda: access).session()
    without = Access(server=server)
    assert (await Credentials(lambda: without).session()).token is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("raise SystemExit('no login')", "no login"),
        ("print('hello')", "an ExecCredential"),
        ("print('{}')", "a token"),
    ],
)
def test_a_command_that_gives_none_is_named_with_what_it_said(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        run_exec(_command(text))


async def test_a_command_is_asked_again_only_before_its_token_ends(tmp_path: Path) -> None:
    count = tmp_path / "count"
    text = (
        f"import json; open({str(count)!r}, 'a').write('x');"
        "print(json.dumps({'status': {'token': 'abc', 'expirationTimestamp': '2099-01-01T00:00:00Z'}}))"
    )
    clock = _Clock()
    credentials = Credentials(
        lambda: Access(server="http://127.0.0.1", exec=_command(text)), clock_seconds=clock
    )
    for _ in range(3):
        assert "abc" == (await credentials.session()).token
        clock.seconds += 100
    assert "x" == count.read_text()
    credentials.distrust()
    await credentials.session()
    assert "xx" == count.read_text()
