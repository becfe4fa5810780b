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
from reactor.kube.credentials import (
    Access,
    Credentials,
    Exec,
    access_from_kubeconfig,
    credentials_of,
    in_cluster_access,
    read_access,
    run_exec,
    tls_context,
)
from reactor.kube.errors import UnauthorizedError, UnreachableError
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


_CONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts:
- {name: here, context: {cluster: one, user: me}}
- {name: there, context: {cluster: two, user: me}}
clusters:
- name: one
  cluster: {server: "https://10.0.0.1:6443/", certificate-authority: ca.crt, tls-server-name: api}
- {name: two, cluster: {server: "https://10.0.0.2"}}
users:
- name: me
  user: USER
"""


def _access(user: str, config: str = _CONFIG) -> Access:
    return access_from_kubeconfig(config.replace("USER", user), Path("/etc/kube/config"))


def _problems(user: str, config: str = _CONFIG) -> str:
    with pytest.raises(ConfigError) as caught:
        _access(user, config)
    return str(caught.value)


def test_the_current_context_is_taken_and_paths_are_relative_to_the_file() -> None:
    access = _access("{client-certificate: pki/me.pem, client-key: /abs/me.key}")
    assert (
        Access(
            server="https://10.0.0.1:6443",
            server_name="api",
            authority_path="/etc/kube/ca.crt",
            certificate_path="/etc/kube/pki/me.pem",
            key_path="/abs/me.key",
        )
        == access
    )
    assert ("/etc/kube/ca.crt", "/etc/kube/pki/me.pem", "/abs/me.key") == access.paths


def test_tokens_their_files_and_commands_are_taken() -> None:
    assert "abc" == _access("{token: abc}").token
    assert "/etc/kube/token" == _access("{tokenFile: token}").token_path
    command = _access("{exec: {apiVersion: v1x, command: aws, args: [eks], env: [{name: A, value: b}]}}").exec
    assert Exec(command="aws", args=("eks",), env={"A": "b"}, api_version="v1x") == command


def test_what_is_given_in_the_file_itself_is_decoded() -> None:
    assert b"pem" == _access("{client-certificate-data: cGVt}").certificate_pem
    assert "certificate-data: got" in _problems("{client-certificate-data: '*'}")


@pytest.mark.parametrize(
    ("user", "wanted"),
    [
        ("{username: admin, password: x}", "users[me].user.username: got a password"),
        ("{auth-provider: {name: gcp}}", "users[me].user.auth-provider"),
    ],
)
def test_ways_in_that_are_not_taken_are_named(user: str, wanted: str) -> None:
    assert wanted in _problems(user)


def test_names_that_lead_nowhere_are_reported_with_those_that_are_there() -> None:
    told = _problems("{}", _CONFIG.replace("current-context: here", "current-context: gone"))
    assert "/etc/kube/config.current-context: got 'gone'; accepted: one of those listed: here, there" == told
    assert "one, two" in _problems("{}", _CONFIG.replace("cluster: one, user", "cluster: three, user"))


def test_a_server_that_is_no_address_and_a_proxy_are_refused_together() -> None:
    config = _CONFIG.replace('"https://10.0.0.1:6443/"', "10.0.0.1, proxy-url: http://proxy")
    told = _problems("{}", config)
    assert "clusters[one].cluster.server: got '10.0.0.1'" in told
    assert "clusters[one].cluster.proxy-url" in told


@pytest.mark.parametrize("text", ["", "[]", "{", "current-context: [1]", "clusters: 3"])
def test_what_is_no_kubeconfig_is_a_configuration_error(text: str) -> None:
    with pytest.raises(ConfigError, match="/etc/kube/config"):
        _access("{}", text)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path}/gone: got No such file"):
        read_access(f"{tmp_path}/gone")


def test_a_pod_is_let_in_by_its_service_account(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc")
    access = in_cluster_access(
        {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}, tmp_path
    )
    assert "https://[fd00::1]:443" == access.server
    assert str(tmp_path / "token") == access.token_path


def test_outside_of_a_pod_a_kubeconfig_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"reactor\.kubernetes\.kubeconfig: got none"):
        in_cluster_access({}, tmp_path)
    with pytest.raises(ConfigError, match="token missing"):
        in_cluster_access({"KUBERNETES_SERVICE_HOST": "a", "KUBERNETES_SERVICE_PORT": "1"}, tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away: run as root")
@pytest.mark.parametrize("how", ["file's mode", "file's owner", "directory's mode"])
def test_a_command_of_a_kubeconfig_that_others_may_write_is_refused(tmp_path: Path, how: str) -> None:
    directory = tmp_path / "kube"
    directory.mkdir(mode=0o755)
    path = directory / "config"
    path.write_text(_CONFIG.replace("USER", "{exec: {command: /bin/true}}"))
    path.chmod(0o600)
    assert read_access(str(path)).exec is not None
    if how == "file's mode":
        path.chmod(0o620)
    elif how == "file's owner":
        os.chown(path, 12345, -1)
    else:
        directory.chmod(0o757)
    with pytest.raises(ConfigError, match=r"users\[me\]\.user\.exec: got .*(mode 0|uid 12345)"):
        read_access(str(path))
    path.write_text(_CONFIG.replace("USER", "{token: abc}"))
    assert "abc" == read_access(str(path)).token
