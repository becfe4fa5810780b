"""The command line as its users meet it: arguments, exit statuses, what stands on which stream."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import reactor.tune
from reactor.cli import _parser, main
from reactor.commands import arguments as shared
from reactor.errors import ConfigError, Problem
from reactor.tune import TuneOptions

COMMANDS = [
    ["run"],
    ["clean"],
    ["simulate"],
    ["record"],
    ["status"],
    ["explain"],
    ["doctor"],
    ["demo"],
    ["bench"],
    ["bench", "race"],
    ["tune"],
    ["top"],
    ["config"],
    ["config", "check"],
    ["config", "show"],
    ["config", "init"],
    ["notify"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([*command, "--help"])

    assert end.value.code == 0
    assert re.search(r"example: (sudo )?reactor ", capsys.readouterr().out)


@pytest.mark.parametrize(
    "arguments",
    [[], ["fly"], ["run", "--config"], ["simulate"], ["config"], ["status", "--output", "xml"]],
    ids=" ".join,
)
def test_wrong_usage_exits_2_and_speaks_on_standard_error(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)

    assert end.value.code == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "usage: reactor" in streams.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "--last", "0"], "--last: got '0'; accepted: a whole number above 0"),
        (["report", "--since", "²d"], "--since: got '²d'; accepted: an instant such as"),
        (["tune", "--pods", "many"], "--pods: got 'many'; accepted: a number from 1 to 1000"),
        (
            ["tune", "--victim", "0"],
            "--victim: got '0'; accepted: a quantity such as 100Mi, 1.5Gi, 2G or 500, above 0",
        ),
    ],
    ids=["last", "since", "pods", "victim"],
)
def test_a_number_that_is_refused_is_shown_with_what_is_accepted(arguments, said, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)

    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_a_first_configuration_refuses_thresholds_from_what_is_no_text(tmp_path, capsys):
    noise = tmp_path / "noise.yaml"
    noise.write_bytes(b"\xff\xfe")

    assert main(["config", "init", "--thresholds-from", str(noise)]) == 2

    assert f"reactor: {noise}: got 'utf-8' codec" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ("config", "check"),
        ("config", "show"),
        ("config", "init", "--thresholds-from"),
        ("simulate",),
        ("tune", "--from"),
        ("cluster", "clean", "--all", "--kubeconfig"),
        ("shadow", "--journal", "/dev/null", "--anonymise"),
        ("bench", "race", "--render"),
    ],
    ids=" ".join,
)
def test_a_fifo_as_input_is_refused_and_not_waited_for(command, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    done = subprocess.run(
        [sys.executable, "-m", "reactor", *command, str(tmp_path / "fifo")],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in {1, 2}
    assert f"{tmp_path}/fifo: " in done.stderr
    assert "not a regular file" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "SCENARIO: document: got [1]; accepted: a mapping"),
        ("[" * 200, "SCENARIO:1:101: got more than 100 levels"),
        ("", "SCENARIO: got an empty file; accepted: one document"),
    ],
    ids=["list", "deep", "empty"],
)
def test_what_is_wrong_in_a_scenario_of_a_sweep_is_named_once_with_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    path = tmp_path / "scenario.json"
    path.write_text(text)
    assert 2 == main(["simulate", str(path), "--sweep", "memory.available<1Gi,2Gi"])
    assert capsys.readouterr().err.startswith(f"reactor: {said.replace('SCENARIO', str(path))}")


def test_a_stored_race_that_is_nested_too_deeply_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "race.json"
    path.write_text("[" * 100_000)
    assert 2 == main(["bench", "race", "--render", str(path)])
    assert f"{path}: not JSON: " in capsys.readouterr().err


def test_a_fifo_that_no_process_reads_is_not_waited_for_by_a_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = tmp_path / "scenario.json"
    scenario.write_text('{"apiVersion": "reactor/v1alpha1", "kind": "Scenario", "steps": [{"at": "0s"}]}')
    os.mkfifo(tmp_path / "fifo")
    arguments = ["--sweep", "memory.available<1Gi,2Gi", "--csv", str(tmp_path / "fifo")]
    assert 1 == main(["simulate", str(scenario), *arguments])
    assert f"reactor: {tmp_path}/fifo: " in capsys.readouterr().err


def test_a_journal_without_a_decision_that_is_to_be_a_recording_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, journal = tmp_path / "config.yaml", tmp_path / "journal.jsonl"
    config.write_text("evictionHard: {memory.available: 100Mi}\n")
    journal.write_text("[1, 2]\n")
    assert 1 == main(["record", "--config", str(config), "--journal", str(journal), "-"])
    assert f"reactor: {journal}: no decision is in it; 0 steps recorded\n" == capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["managed-oom"]], ids=["all", "one"])
def test_help_is_readable_where_the_locale_lacks_a_character(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "reactor", *command, "--help"],
        check=False,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (0, b"") == (done.returncode, done.stderr)
    assert b"ManagedOOM" in done.stdout


def test_an_interrupt_while_the_arguments_are_read_has_no_traceback(monkeypatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("reactor.cli._parser", interrupted)
    assert 130 == main(["doctor"])


_PATHS = [
    ("run", "--config", "--config-dir"),
    ("clean", "--config", "--config-dir"),
    ("notify --test", "--config", "--config-dir"),
    ("status", "--config", "--config-dir", "--socket"),
    ("top --once", "--config", "--config-dir", "--socket"),
    ("explain", "POD", "--config", "--config-dir", "--socket", "--journal"),
    ("report", "POD", "--config", "--config-dir", "--journal", "--out"),
    ("doctor", "--config", "--config-dir"),
    ("simulate", "SCENARIO", "--csv", "--report"),
    ("record", "SCENARIO"),
    ("record x", "--config", "--config-dir", "--journal"),
    ("shadow", "--config", "--config-dir", "--journal", "--report", "--anonymise"),
    ("fleet", "DIRECTORY"),
    ("fleet x", "--policy", "--report", "--anonymise"),
    ("tune", "--config", "--config-dir", "--journal", "--results", "--from"),
    ("bench", "--results", "--against", "--baseline"),
    ("bench race", "--results", "--peers", "--render", "--plot", "--usage"),
    ("config check", "FILE", "--config", "--config-dir"),
    ("config show", "FILE", "--config", "--config-dir"),
    ("config init", "FILE", "--thresholds-from"),
    ("cluster clean --all", "--kubeconfig"),
]


@pytest.mark.parametrize(
    ("command", "name"), [(command, name) for command, *names in _PATHS for name in names]
)
def test_an_empty_path_is_refused_and_is_no_default(command, name, monkeypatch, capsys) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)  # so that nothing would be measured or started
    arguments = [*command.split(), *([name] if name.startswith("-") else []), ""]
    with pytest.raises(SystemExit) as end:
        _parser().parse_args(arguments)
    assert 2 == end.value.code
    assert f"argument {name}: got ''; accepted: " in capsys.readouterr().err


def test_the_help_begins_with_what_people_run_and_marks_what_they_do_not(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])

    listed = re.findall(r"^    ([a-z-]+)(?: +|\n +)(\S.*)$", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, _ in listed][:2] == ["run", "simulate"]
    assert listed[-1][0] == "managed-oom"
    assert listed[-1][1].startswith("internal: ")


def test_wrong_configuration_names_every_problem_and_exits_2(tmp_path, capsys):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("evictionHard: {memory.available: 100Xi}\nreactor: {housekeepingInterval: 1ms}\n")

    assert main(["config", "check", str(wrong)]) == 2

    lines = capsys.readouterr().err.splitlines()
    assert any("evictionHard" in line and "100Xi" in line for line in lines)
    assert any("housekeepingInterval" in line for line in lines)


def test_right_configuration_exits_0_and_names_its_thresholds(tmp_path, capsys):
    right = tmp_path / "right.yaml"
    right.write_text("evictionHard: {memory.available: 100Mi}\n")

    assert main(["config", "check", str(right)]) == 0

    assert "memory.available<100Mi" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["check", "show"])
def test_the_file_may_be_given_as_for_the_other_commands(command, tmp_path, capsys):
    right = tmp_path / "right.yaml"
    right.write_text("evictionHard: {memory.available: 100Mi}\n")

    assert main(["config", command, "--config", str(right)]) == 0

    assert str(right) in capsys.readouterr().out


def test_a_configuration_by_which_no_pod_can_be_evicted_is_right_and_named(tmp_path, capsys):
    without = tmp_path / "without.yaml"
    without.write_text("evictionHard: {memory.available: 100Mi}\n")

    assert main(["config", "check", str(without)]) == 0

    assert "reactor.pods.parents: empty: no pod can be evicted" in capsys.readouterr().err


@pytest.mark.parametrize("section", ["{nodeCgroup: /node}", "{pods: {parents: [/node]}}", "{kubernetes: {}}"])
def test_a_configuration_by_which_pods_can_be_evicted_is_not_warned_of(section, tmp_path, capsys):
    right = tmp_path / "right.yaml"
    right.write_text(f"evictionHard: {{memory.available: 1}}\nreactor: {section}\n")

    assert main(["config", "check", str(right)]) == 0

    assert "no pod can be evicted" not in capsys.readouterr().err


@pytest.mark.parametrize("command", [["status"], ["explain", "pod"]])
def test_without_a_daemon_status_and_explain_say_so_and_exit_1(command, tmp_path, capsys):
    assert main([*command, "--socket", str(tmp_path / "nobody.sock")]) == 1

    error = capsys.readouterr().err
    assert "nobody.sock" in error
    assert "reactor run" in error


def test_a_journal_that_is_not_there_is_named_with_the_reason(tmp_path, capsys):
    absent = tmp_path / "journal.jsonl"

    assert main(["explain", "--journal", str(absent)]) == 1

    assert capsys.readouterr().err == f"reactor: {absent}: No such file or directory\n"


@pytest.mark.parametrize("command", [["bench", "race", "--render"], ["tune", "--from"]], ids=" ".join)
def test_a_stored_result_that_is_not_there_is_named_with_the_reason(tmp_path, capsys, command) -> None:
    absent = tmp_path / "stored.json"

    assert main([*command, str(absent)]) in {1, 2}

    assert capsys.readouterr().err.endswith(f": {absent}: No such file or directory\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bench", "--skip", "psi"], "--skip: only with --by-source"),
        (["bench", "--skip", "", "--rounds", "5"], "--skip, --rounds: only with --by-source"),
        (["bench", "race", "--plot", "a.svg"], "--plot: only with --render"),
        (["simulate", "a.yaml", "--csv", "a.csv"], "--csv: only with --sweep"),
        (["record", "--keep", "30", "node.json"], "--keep: only with --rotate-hours"),
        (["explain", "web", "--last", "3"], "--last: only with --journal"),
        (["config", "init", "--force"], "--force: only with FILE"),
        (["bench", "--by-source", "--parts", "kill-max"], "--parts: not with --by-source"),
        (
            [
                "bench",
                "--by-source",
                "--runs",
                "30",
                "--turns=4",
                "--idle-seconds",
                "60",
                "--update-baseline",
            ],
            "--runs, --turns, --idle-seconds, --update-baseline: not with --by-source",
        ),
        (["bench", "--against", "main", "--baseline", "b.json"], "--baseline: not with --against"),
        (["bench", "--by-source", "--parts", "kill-max", "race"], "--parts, --by-source: not with race"),
        (
            ["bench", "race", "--render", "a.json", "--rounds=3", "--only", "c-floor", "--seed", "0"],
            "--rounds, --only, --seed: not with --render",
        ),
        (["simulate", "--benchmark", "a.yaml"], "SCENARIO: not with --benchmark"),
        (["simulate", "--benchmark", "--sweep", "x", "--csv=c"], "--sweep, --csv: not with --benchmark"),
        (["record", "--journal", "j", "--seconds", "9", "out"], "--seconds: not with --journal"),
        (["tune", "--from", "m.json", "--minutes", "5", "--pods=10"], "--minutes, --pods: not with --from"),
        (["config", "check", "a", "--config", "b"], "--config: not with FILE; accepted: one or the other"),
        (["config", "show", "a", "--config", "b"], "--config: not with FILE; accepted: one or the other"),
        (["config", "init", "-", "--force"], "--force: only with FILE"),
        (["simulate", "--benchmark", "--output", "json"], "--output json: not with --benchmark"),
        (
            ["report", "--since", "2026-11-22T10:14", "--until", "2026-11-22T10:13"],
            "--since, --until: no time is between them; accepted: --since before --until",
        ),
        (
            ["record", "--label", "pool=a", "--label", "pool=b", "out"],
            "--label pool=a: not with --label pool=b; accepted: one or the other",
        ),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_an_option_that_would_have_no_effect_is_refused(arguments, said, monkeypatch, capsys) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)  # so that a benchmark would start nothing
    with pytest.raises(SystemExit) as end:
        main(arguments)

    assert end.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["bench", "race", "--rounds", "7"], ["bench", "--rounds", "7", "race"]],
    ids=["after", "before"],
)
def test_rounds_may_stand_before_the_race_or_after_it(arguments) -> None:
    assert 7 == _parser().parse_args(arguments).rounds


@pytest.mark.parametrize("there", [True, False], ids=["there", "absent"])
@pytest.mark.parametrize("command", ["doctor", "tune", "shadow", "report", "explain", "status", "top"])
def test_commands_go_by_the_default_configuration_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, *, there: bool
) -> None:
    default = tmp_path / "config.yaml"
    if there:
        default.write_text("reactor: {kernelKill: hard, socket: /run/other.sock}\n")
    monkeypatch.setattr(shared, "DEFAULT_CONFIG", default)
    options = _parser().parse_args([command])

    settings = shared.settings_sought(options)

    assert (None if settings is None else settings.kernel_kill.value) == ("hard" if there else None)
    if "socket" in options:
        expected = "/run/other.sock" if there else "/run/reactor/reactor.sock"
        assert expected == str(shared.socket_of(options))


@pytest.mark.parametrize("there", [True, False], ids=["there", "absent"])
def test_tune_measures_by_the_default_configuration_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, there: bool
) -> None:
    default = tmp_path / "config.yaml"
    if there:
        default.write_text("evictionHard: {memory.available: 100Mi}\n")
    monkeypatch.setattr(shared, "DEFAULT_CONFIG", default)
    asked: list[TuneOptions] = []
    monkeypatch.setattr(reactor.tune, "tune", lambda options: asked.append(options) or 0)

    assert main(["tune"]) == 0

    assert [default if there else None] == [options.config for options in asked]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        *((name, "config.yaml, if it exists)") for name in ("doctor", "tune", "shadow", "report")),
        *((name, "config.yaml, if it exists)") for name in ("explain", "status", "top")),
        *((name, "config.yaml):") for name in ("run", "record", "clean", "notify")),
    ],
)
def test_the_help_says_which_configuration_is_the_default(command, said, capsys) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])

    assert f"the configuration (/etc/reactor/{said}" in " ".join(capsys.readouterr().out.split())


def test_run_with_an_absent_configuration_starts_nothing_and_exits_2(tmp_path):
    # In a process of its own, because `run` blocks signals for good.
    absent = tmp_path / "absent.yaml"
    ended = subprocess.run(
        [sys.executable, "-m", "reactor", "run", "--config", str(absent)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert ended.returncode == 2
    assert "absent.yaml" in ended.stderr


def test_run_has_help_and_refuses_wrong_arguments_as_other_commands_do() -> None:
    for arguments, status, stream in ((["--help"], 0, "stdout"), (["--fly"], 2, "stderr")):
        command = [sys.executable, "-m", "reactor", "run", *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (ended.returncode, "usage: reactor" in getattr(ended, stream)) == (status, True)


def test_problems_of_a_configuration_are_the_same_in_another_process() -> None:
    error = ConfigError(
        [Problem(path="a.b", got="'7'", accepted="8"), Problem(path="c", got="1", accepted="2")]
    )
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made right here
    assert (copy.problems, str(copy)) == (error.problems, str(error))


def test_commands_that_do_not_need_it_import_neither_trio_nor_the_daemon():
    script = (
        "import sys; from reactor.cli import main; main(['config', 'check', '/dev/null']); "
        "print([name for name in ('trio', 'reactor.guard.daemon', 'rich', 'prometheus_client') "
        "if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert ended.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "arguments", [["bench", "--results", "/there", "race"], ["bench", "race", "--results", "/there"]]
)
def test_where_results_go_may_stand_before_the_race_or_after_it(arguments: list[str]) -> None:
    assert Path("/there") == _parser().parse_args(arguments).results


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["bench"], "reactor bench"),
        (["bench", "race"], "reactor bench race"),
        (["simulate", "--benchmark"], "reactor simulate --benchmark"),
    ],
)
def test_an_installed_package_says_that_the_benchmarks_are_part_of_a_checkout(
    arguments: list[str], command: str, monkeypatch, capsys
) -> None:
    monkeypatch.setitem(sys.modules, "bench", None)
    for name in [name for name in sys.modules if name.startswith("bench.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert 2 == ended.value.code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{command}: part of a checkout")


def test_an_invalid_configuration_is_no_reason_not_to_ask_the_daemon(tmp_path, capsys):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(f"evictionHard: {{memory.available: 100Xi}}\nreactor: {{socket: {tmp_path}/s.sock}}\n")

    assert main(["status", "--config", str(wrong)]) == 1  # no daemon answers there

    told = capsys.readouterr().err
    assert f"{wrong}: invalid, 1 error (reactor config check {wrong})" in told
    assert f"asking the daemon at {tmp_path}/s.sock" in told


def test_a_configuration_that_is_not_there_is_not_called_invalid(tmp_path, capsys):
    main(["status", "--config", str(tmp_path / "nope")])

    told = capsys.readouterr().err
    assert f"{tmp_path}/nope: there is no such file; asking the daemon at /run/reactor/reactor.sock" in told


@pytest.mark.parametrize("content", ["a: [\n", "- 1\n", "reactor: {socket: 7}\n", "reactor: 1\n"])
def test_a_configuration_that_names_no_socket_leaves_the_default_one(tmp_path, capsys, content):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(content)

    main(["status", "--config", str(wrong)])

    assert "asking the daemon at /run/reactor/reactor.sock" in capsys.readouterr().err


@pytest.mark.parametrize(("strict", "status"), [([], 0), (["--strict"], 1)])
def test_a_pipeline_can_have_a_warning_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], strict: list[str], status: int
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("evictionHard: {memory.available: 100Mi}\nreactor: {pods: {parents: [/not-there]}}\n")
    assert status == main(["config", "check", str(file), *strict])
    shown = capsys.readouterr()
    assert f"{file}: ok, 1 threshold: memory.available<100Mi" in shown.out
    assert "/not-there is not on this machine" in shown.err


@pytest.mark.parametrize("command", ["check", "show"])
def test_a_pipe_of_the_shells_own_is_read_once(capsys: pytest.CaptureFixture[str], command: str) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"evictionHard: {memory.available: 7Mi}\nreactor: {reclaim: {nodefs: [/bin/true]}}\n")
    os.close(writer)
    try:
        assert 0 == main(["config", command, f"/dev/fd/{reader}"])
    finally:
        os.close(reader)
    shown = capsys.readouterr()
    assert "memory.available" in shown.out
    assert "reactor run refuses it" not in shown.err


def test_only_what_the_files_change_can_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("evictionHard: {memory.available: 100Mi}\nreactor: {evictionsPerMinute: 7}\n")
    for command in (["config", "show", str(file)], ["config", "show", str(file), "--changed"]):
        assert 0 == main(command)
    everything, changed = capsys.readouterr().out.split("node: this machine")[1:]
    assert "evictionsPerMinute" in everything
    assert "housekeepingInterval" in everything
    assert "evictionsPerMinute" in changed
    assert "housekeepingInterval" not in changed


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["record", "--interval-seconds", "0", "x.yaml"], "got '0'; accepted: a number above 0"),
        (["bench", "--runs", "no"], "got 'no'; accepted: a whole number from 1 on"),
    ],
)
def test_a_number_that_is_none_is_named_with_the_accepted_form(
    capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert 2 == ended.value.code
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("closed", "status", "expected"),
    [
        ("<&-", 2, "standard input: got an empty file; accepted: one document"),
        (">&-", 0, ""),
        ("2>&-", 0, ""),
    ],
)
def test_a_standard_stream_that_is_closed_is_an_empty_one(
    tmp_path: Path, closed: str, status: int, expected: str
) -> None:
    scenario = tmp_path / "scenario.json"
    scenario.write_text('{"apiVersion": "reactor/v1alpha1", "kind": "Scenario", "steps": [{"at": "0s"}]}')
    name = "-" if status else scenario
    script = f'"$0" -m reactor simulate "$1" {closed}'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable, str(name)], capture_output=True, text=True, check=False
    )
    assert (status, expected) == (done.returncode, done.stderr.strip())


@pytest.mark.parametrize("arguments", [["config", "init"], ["--help"]], ids=" ".join)
def test_a_standard_output_that_is_full_is_named(arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "reactor", *arguments],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            env={key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"},
        )
    expected = b"reactor: standard output: No space left on device"
    assert (1, expected) == (done.returncode, done.stderr.splitlines()[-1])
    assert b"Exception" not in done.stderr


def test_a_file_that_is_full_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = tmp_path / "scenario.json"
    scenario.write_text('{"apiVersion": "reactor/v1alpha1", "kind": "Scenario", "steps": [{"at": "0s"}]}')
    sweep = ["--sweep", "memory.available<1Gi", "--csv", "/dev/full"]
    assert 1 == main(["simulate", str(scenario), *sweep])
    assert "reactor: /dev/full: No space left on device" == capsys.readouterr().err.splitlines()[-1]
