from __future__ import annotations

import os
from pathlib import Path

import pytest

from reactor.errors import ConfigError
from reactor.kube.kubeconfig import Access, Exec, access_from_kubeconfig, in_cluster_access, read_access

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


def test_names_that_lead_nowhere_are_told_with_those_that_are_there() -> None:
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
