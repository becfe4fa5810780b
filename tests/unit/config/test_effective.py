"""What is right in form and has no effect; and errors that say what was meant and in which file."""

from __future__ import annotations

from pathlib import Path

import pytest

from reactor.cli import main
from reactor.config.settings import load_settings, settings_from_text
from reactor.errors import ConfigError

HARD = "evictionHard: {memory.available: 100Mi}"
UNKNOWN = "ignored: an unknown key (did you mean"
_BY_RULES = "pods are evicted by rules alone"
_BY_NOBODY = "no pod can be evicted"
GOT = "got an unknown key (did you mean"


def _warnings(text: str) -> tuple[str, ...]:
    return settings_from_text(text, "f.yaml").warnings


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("evictonHard: {memory.available: 1Gi}", f"evictonHard: {UNKNOWN} evictionHard?)"),
        ("evictionhard: {memory.available: 1Gi}", f"evictionhard: {UNKNOWN} evictionHard?)"),
        ("Reactor: {dryRun: true}", f"Reactor: {UNKNOWN} reactor?)"),
        ("reactors: {dryRun: true}", f"reactors: {UNKNOWN} reactor?)"),
        ("dryRun: true", "dryRun: ignored: it belongs below reactor"),
        ("pods: {parents: [/a]}", "pods: ignored: it belongs below reactor"),
        (
            "systemReserved: {memroy: 1Gi}",
            "systemReserved.memroy: ignored: an unknown resource (did you mean memory?)",
        ),
        ("evictionHard: {}", "evictionHard: there is no threshold, hard or soft: no pod can be evicted"),
        # A null says nothing, so that a drop-in can take a threshold back: its name is not read either.
        (
            f"{HARD}\nevictionMinimumReclaim: {{x: null}}\nevictionSoft: {{memory.avalable: null}}",
            'evictionSoft["memory.avalable"]: null is no threshold; a kubelet refuses it',
        ),
        (
            "evictionHard: {memory.available: 1Gi, nodefs.available: null}",
            'evictionHard["nodefs.available"]: null is no threshold; a kubelet refuses it',
        ),
        (
            f"{HARD}\nevictionSoftGracePeriod: {{memory.available: 30s}}",
            'evictionSoftGracePeriod["memory.available"]: no effect: evictionSoft has no memory.available',
        ),
        (
            f"{HARD}\nevictionMinimumReclaim: {{pid.available: 100}}",
            'evictionMinimumReclaim["pid.available"]: no effect: there is no threshold for pid.available',
        ),
        (
            f"{HARD}\nreactor: {{reclaim: {{nodefs: [/bin/true]}}}}",
            "reactor.reclaim: no effect: no threshold is for a filesystem",
        ),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_named_with_its_file(text: str, warning: str) -> None:
    assert (f"f.yaml: {warning}",) == _warnings(text)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("500", "that is 500 bytes; 500Mi?"),
        ('"500"', "that is 500 bytes; 500Mi?"),
        ("500m", "that is less than a byte; 500Mi?"),
        ('"0.1"', "that is less than a byte; 10%?"),
        ("512Ki", "that is 524288 bytes; 512Mi?"),
    ],
)
def test_an_amount_of_bytes_that_lacks_its_unit_is_asked_about(value: str, why: str) -> None:
    assert (f'f.yaml: evictionHard["memory.available"]: {why}',) == _warnings(
        f"evictionHard: {{memory.available: {value}}}"
    )


@pytest.mark.parametrize("threshold", ["pid.available: 500", "memory.available: 1Mi", "memory.available: 5%"])
def test_amounts_of_processes_and_shares_and_of_a_mebibyte_are_what_they_are(threshold: str) -> None:
    assert () == _warnings(f"evictionHard: {{{threshold}}}")


def test_a_signal_that_is_not_indented_below_its_key_is_an_error_that_names_the_place() -> None:
    with pytest.raises(ConfigError) as caught:
        settings_from_text("evictionHard:\nmemory.available: 500Mi\n", "f.yaml")
    (problem,) = caught.value.problems
    assert '["memory.available"]' == problem.path
    assert "evictionHard.memory.available (indent it below evictionHard" in problem.accepted


@pytest.mark.parametrize(
    ("section", "by"),
    [
        ("rules: [{name: r, cgroups: [/a], when: [{usage: 90%}], for: 1s, action: evict}]", _BY_RULES),
        ("rules: [{name: r, cgroups: [/a], when: [{usage: 90%}], for: 1s, action: evictWorst}]", _BY_RULES),
        ("rules: [{name: r, cgroups: [/a], when: [{usage: 90%}], for: 1s, action: report}]", _BY_NOBODY),
        ("rules: [{name: r, cgroups: [/a], when: [{usage: 90%}], for: 1s, action: reclaim}]", _BY_NOBODY),
        ("systemdOomd: replace", _BY_RULES),
        ("systemdOomd: ignore", _BY_NOBODY),
    ],
)
def test_without_a_threshold_the_warning_says_whether_rules_evict(section: str, by: str) -> None:
    text = f"evictionHard: {{}}\nreactor: {{{section}}}"
    assert (f"f.yaml: evictionHard: there is no threshold, hard or soft: {by}",) == _warnings(text)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        HARD,
        f"{HARD}\nsystemReservedCgroup: /system.slice\nkubeReservedCgroup: /kube\nstaticPodURL: http://x",
        f"{HARD}\nshutdownGracePeriodByPodPriority: []\nreservedMemory: []\ncgroupDriver: systemd",
        f"{HARD}\nsystemReserved: {{memory: 1Gi, cpu: 1, ephemeral-storage: 1Gi, pid: '100'}}",
        "{evictionSoft: {memory.available: 1Gi}, evictionSoftGracePeriod: {memory.available: 30s}}",
        "{evictionMinimumReclaim: {nodefs.available: 1Gi}, reactor: {kubernetes: {}}}",
        "evictionMinimumReclaim: {memory.available: 100Mi}",
    ],
)
def test_what_has_an_effect_or_is_upstreams_own_is_not_named(text: str) -> None:
    assert () == _warnings(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("evictionHard: {memory.availble: 1Gi}", "'memory.availble' (did you mean memory.available?)"),
        ("enforceNodeAllocatable: [pod]", "got 'pod' (did you mean pods?); accepted"),
        ("reactor: {dryrun: true}", f"reactor.dryrun: {GOT} dryRun?); accepted"),
        ("reactor: {pods: {parnets: [/a]}}", f"reactor.pods.parnets: {GOT} parents?)"),
        ("reactor: {parents: [/a]}", f"reactor.parents: {GOT} reactor.pods.parents?)"),
        ("reactor: {filesystems: {nodfs: /}}", "got 'nodfs' (did you mean nodefs?)"),
        ("reactor: {kernelKill: hrad}", "reactor.kernelKill: got 'hrad' (did you mean hard?)"),
        (
            "reactor: {evictionHard: {memory.available: 1Gi}}",
            "reactor.evictionHard: got an unknown key (it belongs beside reactor, not below it)",
        ),
    ],
)  # fmt: skip
def test_a_typing_error_is_reported_with_what_was_meant(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_from_text(text, "f.yaml")
    (problem,) = caught.value.problems
    assert told in str(problem)


def test_each_error_names_its_file_and_its_path_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(
        "evictionHard: {memory.available: 100Xi}\nreactor: {brake: hard, pods: {parents: [a]}}\n"
    )
    assert main(["config", "check", str(wrong)]) == 2
    lines = capsys.readouterr().err.splitlines()
    paths = ('evictionHard["memory.available"]', "reactor.brake", "reactor.pods.parents[0]")
    for line, path in zip(sorted(lines), paths, strict=True):
        assert line.startswith(f"reactor: {wrong}: {path}: got ")
        assert (line.count(str(wrong)), line.count(path)) == (1, 1)


@pytest.mark.parametrize("content", ["a: b: c\n", "a: 1\na: 2\n", "[]\n", "a: 1\n---\nb: 2\n", None])
def test_a_file_that_is_no_document_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    wrong = tmp_path / "wrong.yaml"
    if content is not None:
        wrong.write_text(content)
    assert main(["config", "check", str(wrong)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.count(str(wrong)) == 1


def test_a_warning_names_the_drop_in_that_it_is_about(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("evictionHard: {}\n")
    drop_ins = tmp_path / "config.d"
    drop_ins.mkdir()
    (drop_ins / "10.conf").write_text("evictionHard: {memory.available: 1Gi}\ndryRun: true\n")
    warnings = load_settings(tmp_path / "config.yaml", drop_ins).warnings
    assert (f"{drop_ins / '10.conf'}: dryRun: ignored: it belongs below reactor",) == warnings
