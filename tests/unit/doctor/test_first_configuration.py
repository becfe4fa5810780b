"""`reactor config init`: valid, without a warning, safe, and never over another file."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.cli import main
from reactor.config.documents import load_document
from reactor.config.settings import settings_from_text
from reactor.doctor.findings import guarded
from reactor.doctor.first_configuration import (
    Machine,
    Preset,
    _written,
    first_configuration,
    others_of,
    this_machine,
    warnings,
)
from reactor.errors import ConfigError, RefusedError
from reactor.kernel.cgroup import CgroupTree, CgroupVersion
from reactor.model.pod_lists import Preference
from reactor.model.rules import RuleAction

MIB = 1 << 20


@pytest.fixture(params=list(CgroupVersion))
def machine(request, make_tree):
    tree = make_tree(request.param)
    for cgroup in ("/", "/system.slice", "/system.slice/ssh.service", "/machine.slice", "/jobs"):
        tree.add(cgroup)
    return Machine(
        tree=tree.tree,
        has_systemd=True,
        memory_bytes=4096 * MIB,
        kernel_bytes=100 * MIB,
        parents=("/machine.slice",),
        others={"/jobs": 3},
    )


def without_thresholds(said):
    """Return the warnings but for those of thresholds, which are about the machine that runs the test."""
    return [one for one in said if "threshold" not in one]


def test_it_guards_containers_alone_and_starts_as_a_dry_run(machine):
    text = first_configuration(machine)
    settings = settings_from_text(text, "f")
    assert ("/machine.slice",) == settings.pod_parents
    assert settings.dry_run
    assert [] == without_thresholds(warnings(text, machine))


def test_the_threshold_follows_from_the_size_and_what_the_kernel_holds(machine):
    def memory(**changes):
        settings = settings_from_text(first_configuration(dataclasses.replace(machine, **changes)), "f")
        return next(str(one) for one in settings.eviction.thresholds if "memory" in one.signal)

    assert memory() == "memory.available<270Mi"  # 4 % are 163.8Mi
    assert memory(memory_bytes=512 * MIB) == "memory.available<200Mi"
    assert memory(memory_bytes=512 * 1024 * MIB) == "memory.available<1130Mi"
    assert memory(memory_bytes=256 * MIB, kernel_bytes=200 * MIB) == "memory.available<128Mi"


def test_a_machine_without_containers_has_nobody_guarded_and_shows_what_could_be(machine):
    text = first_configuration(dataclasses.replace(machine, parents=()))
    assert () == settings_from_text(text, "f").pod_parents
    assert [] == without_thresholds(warnings(text, machine))
    assert "#   /jobs    # 3 children now" in text
    assert "Slice=guarded.slice" in text


def test_users_applications_could_be_guarded_by_one_pattern_and_roots_are_left_out(make_tree):
    tree = make_tree(CgroupVersion.V2)
    assert {} == dict(others_of(tree.tree))
    for uid, count in ((0, 3), (1000, 2), (1001, 1)):
        for number in range(count):
            tree.add(f"/user.slice/user-{uid}.slice/user@{uid}.service/app.slice/{number}.scope")
    pattern = "/user.slice/user-[1-9]*.slice/user@*.service/app.slice"
    assert {pattern: 3} == dict(others_of(tree.tree))
    assert (pattern,) == settings_from_text(f"reactor: {{pods: {{parents: ['{pattern}']}}}}", "f").pod_parents


def test_a_slice_that_systemd_makes_on_demand_is_guarded_before_it_is_there(machine, monkeypatch):
    monkeypatch.setattr("reactor.doctor.findings.daemon_cgroup", lambda: "/system.slice/reactor.service")
    text = first_configuration(dataclasses.replace(machine, parents=("/machine.slice", "/guarded.slice")))
    assert ("/machine.slice", "/guarded.slice") == settings_from_text(text, "f").pod_parents
    assert [] == without_thresholds(warnings(text, machine))


def test_a_kubernetes_node_has_the_kubelets_thresholds(machine, tmp_path):
    kubelet = tmp_path / "config.yaml"
    kubelet.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 110\n"
        "evictionHard: {memory.available: 333Mi, nodefs.available: 7%}\ncgroupRoot: /\n"
        "systemReserved: {memory: 1Gi}\n"
    )
    node = dataclasses.replace(
        machine, is_kubernetes=True, kubelet_config=kubelet, kubeconfig="/etc/kubernetes/kubelet.conf"
    )
    text = first_configuration(node)
    settings = settings_from_text(text, "f")
    assert "memory.available<333Mi" in map(str, settings.eviction.thresholds)
    assert settings.reserved_memory_bytes == 1024 * MIB
    assert settings.kubernetes is not None
    assert settings.kubernetes.kubeconfig_path == "/etc/kubernetes/kubelet.conf"
    assert "maxPods" not in text


def test_a_kubernetes_node_whose_kubelet_says_nothing_has_thresholds_by_its_size(machine, tmp_path):
    kubelet = tmp_path / "config.yaml"
    for content in ("kind: KubeletConfiguration\n", "evictionHard: {nonsense: 1}\n", "["):
        kubelet.write_text(content)
        text = first_configuration(dataclasses.replace(machine, is_kubernetes=True, kubelet_config=kubelet))
        settings = settings_from_text(text, "f")
        assert "memory.available<270Mi" in map(str, settings.eviction.thresholds)
        assert settings.kubernetes is not None


@pytest.mark.parametrize("partition", ["/kubepods/system", "/kubepods.slice/kubepods-system.slice"])
def test_a_rule_for_the_system_partition_is_offered_where_there_is_one(
    machine, make_tree, monkeypatch, partition
):
    """As comments: nothing evicts there unless the operator wants it. Uncommented they are that rule."""
    tree = make_tree(machine.tree.version)
    tree.add(partition)
    monkeypatch.setattr(CgroupTree, "discover", lambda: tree.tree)
    text = first_configuration(dataclasses.replace(this_machine(), kubelet_config=None))
    assert () == settings_from_text(text, "f").rules
    before, _, lines = text.partition("  # rules:\n")
    rules = "".join(f"{line.replace('  # ', '  ', 1)}\n" for line in lines.splitlines())
    (rule,) = settings_from_text(f"{before}  rules:\n{rules}", "f").rules
    assert ((partition,), RuleAction.EVICT_WORST) == (rule.cgroups, rule.action)


def test_no_rule_is_offered_where_there_is_no_system_partition(machine):
    assert "rules" not in first_configuration(dataclasses.replace(machine, is_kubernetes=True))


def test_thresholds_are_taken_from_a_result_of_tune(machine, tmp_path):
    tuned = tmp_path / "reactor.yaml"
    tuned.write_text(
        'evictionHard:\n  "memory.available": "410Mi"\nmergeDefaultEvictionSettings: true\n'
        'evictionSoft:\n  "memory.available": "900Mi"\n'
        'evictionSoftGracePeriod:\n  "memory.available": "20s"\n'
        "evictionMaxPodGracePeriod: 5\n"
    )
    text = first_configuration(machine, tuned)
    settings = settings_from_text(text, "f")
    assert {"memory.available<410Mi", "memory.available<900Mi"} <= set(map(str, settings.eviction.thresholds))
    assert 5 == settings.eviction.max_pod_grace_period_seconds
    assert ("/machine.slice",) == settings.pod_parents
    assert f"# From {tuned}." in text


def test_thresholds_for_disks_are_not_taken_over_on_a_plain_node(machine, tmp_path):
    tuned = tmp_path / "reactor.yaml"
    tuned.write_text(
        "evictionHard: {memory.available: 410Mi, nodefs.available: 10%}\nmergeDefaultEvictionSettings: true\n"
        "evictionSoft: {imagefs.available: 20%}\nevictionSoftGracePeriod: {imagefs.available: 1m}\n"
        "evictionMinimumReclaim: {memory.available: 10Mi, imagefs.available: 1Gi}\n"
    )
    settings = settings_from_text(first_configuration(machine, tuned), "f")
    (threshold,) = settings.eviction.thresholds
    assert ("memory.available<410Mi", "10Mi") == (str(threshold), threshold.minimum_reclaim.text)
    on_cluster = dataclasses.replace(machine, is_kubernetes=True)
    names = map(str, settings_from_text(first_configuration(on_cluster, tuned), "f").eviction.thresholds)
    assert {"nodefs.available<10%", "imagefs.available<15%"} <= set(names)


@pytest.mark.parametrize("content", ["reactor: {dryRun: true}\n", "evictionHard: {memory.available: 1Xi}\n"])
def test_a_file_without_thresholds_or_with_wrong_ones_is_refused(machine, tmp_path, content):
    (tmp_path / "tuned.yaml").write_text(content)
    with pytest.raises(ConfigError):
        first_configuration(machine, tmp_path / "tuned.yaml")


def test_the_command_refuses_a_file_that_exists_and_names_force(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_text("mine\n")
    assert main(["config", "init", str(path)]) == 1
    assert f"{path}: exists; --force replaces it" in capsys.readouterr().err
    assert path.read_text() == "mine\n"
    assert main(["config", "init", "--force", str(path)]) == 0
    assert main(["config", "check", str(path)]) == 0
    assert capsys.readouterr().err == ""


# What a machine with systemd 252 and 257 runs, as its cgroups are called.
SYSTEM_UNITS = (
    "NetworkManager.service",
    "auditd.service",
    "cloud-init.service",
    "cron.service",
    "dbus.service",
    "docker.service",
    "nginx.service",
    "polkit.service",
    "rsyslog.service",
    "ssh.service",
    "system-getty.slice",
    "system-getty.slice/getty@tty1.service",
    "system-postgresql.slice",
    "system-postgresql.slice/postgresql@15-main.service",
    "systemd-journald.service",
    "systemd-networkd.service",
    "systemd-timesyncd.service",
    "systemd-udevd.service",
    "apt-daily-upgrade.service",
    *("chronyd.service", "cri-docker.service", "dropbear.service", "iscsid.service", "iwd.service"),
    *("k3s.service", "libvirtd.service", "lvm2-monitor.service", "multipathd.service", "networking.service"),
    *("ntpsec.service", "podman.service", "rke2-server.service", "systemd-resolved.service"),
    *("tailscaled.service", "virtqemud.service", "wg-quick@wg0.service", "wpa_supplicant.service"),
)
OF_A_SESSION = (
    "session.slice/org.gnome.Shell@wayland.service",
    "app.slice/app-gnome-firefox-4711.scope",
    "app.slice/app-org.gnome.Terminal.slice",
    "app.slice/dconf.service",
    "app.slice/gpg-agent.service",
)


@pytest.fixture
def plain_machine(machine, monkeypatch):
    """Return a machine with systemd, a session and containers."""
    monkeypatch.setattr("reactor.doctor.findings.daemon_cgroup", lambda: "/system.slice/reactor.service")
    tree = machine.tree
    desk = "/user.slice/user-1000.slice/user@1000.service"
    for cgroup in (
        *(f"/system.slice/{unit}" for unit in SYSTEM_UNITS),
        *(f"{desk}/{unit}" for unit in OF_A_SESSION),
        "/user.slice/user-0.slice",
        "/machine.slice/libpod-4f5e.scope",
        "/machine.slice/libpod-conmon-4f5e.scope",
        "/machine.slice/machine-libpod_pod_3.slice/libpod-3.scope",
        "/machine.slice/machine-libpod_pod_3.slice/libpod-conmon-3.scope",
    ):
        for controller in ("memory", "pids", "cpu", "freezer"):
            (getattr(tree, f"{controller}_root") / cgroup.lstrip("/")).mkdir(parents=True, exist_ok=True)
    return dataclasses.replace(machine, others=dict(others_of(tree)))


def by_preset(machine, preset, proc):
    """Return what the preset's configuration guards, spares, and puts last, by the names of cgroups."""
    text = first_configuration(machine, preset=preset)
    assert [] == without_thresholds(warnings(text, machine))
    settings = settings_from_text(text, "f")
    assert settings.dry_run
    who = guarded(settings, machine.tree, proc=proc, daemon="/system.slice/reactor.service")
    names = {one.pod.cgroup.rpartition("/")[2]: one for one in who.pods}
    return (
        {name for name, one in names.items() if one.spared_because is None},
        {name for name, one in names.items() if one.spared_because is not None},
        {name for name, one in names.items() if one.pod.preference is Preference.AVOID},
    )


def test_a_server_has_services_and_users_guarded_and_what_it_stands_on_spared(plain_machine, tmp_path):
    may_go, stay, last = by_preset(plain_machine, Preset.SERVER, tmp_path)
    assert {
        "nginx.service",
        "cron.service",
        "system-postgresql.slice",
        "apt-daily-upgrade.service",
        "user-1000.slice",
        "libpod-4f5e.scope",
        "machine-libpod_pod_3.slice",
    } == may_go
    assert {
        *(unit for unit in SYSTEM_UNITS if "/" not in unit),
        "user-0.slice",
        "libpod-conmon-4f5e.scope",
    } - may_go == stay
    assert {"system-postgresql.slice", "apt-daily-upgrade.service"} == last


def test_a_desktop_has_applications_guarded_and_not_the_session(plain_machine, tmp_path):
    pattern = "/user.slice/user-[1-9]*.slice/user@*.service/app.slice"
    text = first_configuration(plain_machine, preset=Preset.DESKTOP)
    assert (pattern,) == settings_from_text(text, "f").pod_parents
    may_go, stay, last = by_preset(plain_machine, Preset.DESKTOP, tmp_path)
    assert {"app-gnome-firefox-4711.scope", "app-org.gnome.Terminal.slice"} == may_go
    assert ({"dconf.service", "gpg-agent.service"}, set()) == (stay, last)


def test_a_host_of_containers_has_containers_guarded_and_not_their_monitors(plain_machine, tmp_path):
    may_go, stay, last = by_preset(plain_machine, Preset.CONTAINERS, tmp_path)
    assert {"libpod-4f5e.scope", "machine-libpod_pod_3.slice"} == may_go
    assert ({"libpod-conmon-4f5e.scope"}, set()) == (stay, last)


@pytest.mark.parametrize("preset", [None, *Preset])
def test_with_a_preset_a_pod_is_asked_to_end_before_one_is_killed(machine, preset):
    eviction = settings_from_text(first_configuration(machine, preset=preset), "f").eviction
    soft = [one for one in eviction.thresholds if not one.is_hard]
    assert bool(soft) is bool(eviction.max_pod_grace_period_seconds) is (preset is not None)
    assert (eviction.minimum_victim is None) is (preset is None)


def test_a_machine_without_systemd_has_a_preset_of_what_is_there(machine):
    bare = dataclasses.replace(machine, has_systemd=False)
    for preset, parents in (
        (Preset.SERVER, ("/system.slice", "/machine.slice")),
        (Preset.CONTAINERS, ("/machine.slice",)),
        (Preset.DESKTOP, ()),
    ):
        text = first_configuration(bare, preset=preset)
        assert parents == settings_from_text(text, "f").pod_parents
        assert ("nobody is guarded" in text) is (not parents)


def test_a_preset_is_refused_on_a_kubernetes_node(machine):
    with pytest.raises(RefusedError, match="for a plain node"):
        first_configuration(dataclasses.replace(machine, is_kubernetes=True), preset=Preset.SERVER)


def test_a_preset_takes_the_thresholds_of_tune(machine, tmp_path):
    tuned = tmp_path / "reactor.yaml"
    tuned.write_text('evictionHard: {"memory.available": "410Mi"}\n')
    settings = settings_from_text(first_configuration(machine, tuned, Preset.SERVER), "f")
    assert ["memory.available<410Mi"] == list(map(str, settings.eviction.thresholds))


@pytest.mark.parametrize("preset", list(Preset))
def test_the_command_writes_what_a_preset_means(preset, capsys):
    assert main(["config", "init", "--preset", preset]) == 0
    streams = capsys.readouterr()
    assert f"config init --preset {preset}`" in streams.out
    assert streams.err == ""


NAMES = (
    "/lxc\r  onEviction: [/bin/id]",
    "/lxc\n  onEviction: [/bin/id]",
    "/lxc\u2028  onEviction: [/bin/id]",
    "/lxc\u2029  onEviction: [/bin/id]",
    "/lxc\x85  onEviction: [/bin/id]",
    "/lxc\u202egnp.exe",
    "/lxc\udcff\udcfe",
    "/lxc\x1b[2J\x00",
    "/lxc: {a, b] #c",
    '/lxc"\\x0d',
    "/lxc-\U0001f600-ü",
)


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_a_cgroup_ends_the_comment_that_it_stands_in(machine, name):
    text = first_configuration(dataclasses.replace(machine, others={name: 1}))
    assert text.replace("\n", "").isprintable()
    text.encode()  # what can't be encoded can't be written
    settings = settings_from_text(text, "f")
    assert {} == dict(settings.notifications.commands)
    (line,) = (line for line in text.splitlines() if "1 child now" in line)
    assert line.startswith("  #   ")


@pytest.mark.parametrize(
    "name", [one.replace("[/bin/id]", "/bin/id") for one in NAMES if not {"\x00", "\udcff"} & set(one)]
)
def test_every_name_of_a_parent_is_read_as_it_was_written(machine, name):
    text = first_configuration(dataclasses.replace(machine, parents=(name, "/docker")))
    assert (name, "/docker") == settings_from_text(text, "f").pod_parents


@given(st.text())
def test_whatever_a_name_is_its_entry_is_one_line_of_yaml(name):
    written = _written(f"/{name}")
    assert written.isprintable()
    if not any(0xD800 <= ord(character) <= 0xDFFF for character in name):
        assert [f"/{name}"] == load_document(f"[{written}]", "f")


def test_plain_names_stay_as_they_are(machine):
    for name in ("/system.slice", "/user.slice/user-1000.slice/user@1000.service", r"/a\x2db.slice"):
        assert name == _written(name)


def test_where_the_thresholds_are_from_is_written_in_one_line(machine, tmp_path):
    path = tmp_path / "a\rreactor: {onEviction: [id]}"
    path.write_text("evictionHard: {memory.available: 1Gi}\n")
    text = first_configuration(machine, path)
    assert text.replace("\n", "").isprintable()
    assert {} == dict(settings_from_text(text, "f").notifications.commands)
