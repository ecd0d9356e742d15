"""How a process ended, in words that claim no more than is known: parsers on recorded texts, and real ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.targets import control_groups, kernel_log
from app.targets.child import Child
from app.targets.control_groups import Memory
from app.targets.exit import Exit, describe, judge
from app.targets.kernel_log import KernelLine, KernelLog
from tests.edges.servers import server, until

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "ended by itself, without an error (status 0)"),
        (1, "ended with an error (what Python does after an uncaught exception) (status 1)"),
        (2, "refused its command line (argparse), or a shell's misuse (status 2)"),
        (42, "ended with status 42"),
        (126, "the command was found but could not be executed (status 126)"),
        (127, "the command was not found (status 127)"),
        (128, "ended with status 128"),
        (139, "ended with status 139, a shell's way to say that its command met SIGSEGV"),
        (
            137,
            "ended with status 137, a shell's way to say that its command met SIGKILL "
            "(which alone does not mean lack of memory)",
        ),
        (255, "ended with status 255"),
        (-6, "SIGABRT (signal 6): native code gave up by itself (an assertion, std::terminate, a heap check)"),
        (
            -9,
            "SIGKILL (signal 9): killed; that alone does not tell by whom: "
            "many engines end themselves so after a crash",
        ),
        (-28, "SIGWINCH (signal 28)"),
        (-40, "SIGRTMIN+6 (signal 40)"),
        (-200, "signal 200"),
        (None, "ended, exit status unknown"),
    ],
)
def test_words(status: int | None, words: str) -> None:
    assert describe(status) == words


def test_sigkill_is_called_out_of_memory_only_with_proof() -> None:
    assert "memory" not in describe(-9)
    assert describe(-9, oom=True).endswith("killed, and the kernel says for lack of memory")
    assert describe(-9, oom=False).endswith("killed, and not by the kernel for lack of memory")


def test_code_and_signal() -> None:
    assert (Exit(3).code, Exit(3).signal) == (3, None)
    assert (Exit(-9).code, Exit(-9).signal) == (None, 9)
    assert (Exit(None).code, Exit(None).signal) == (None, None)


# --- control groups -------------------------------------------------------------------------------------------------

V2_EVENTS = "low 0\nhigh 0\nmax 118\noom 4\noom_kill 3\noom_group_kill 0\n"
V1_CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"
V2_MOUNT = "25 22 0:23 / /sys/fs/cgroup rw,nosuid,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)
DOCKER_V1_MOUNT = "7 6 0:32 /docker/0123abcd /sys/fs/cgroup/memory ro,relatime - cgroup cgroup rw,memory\n"


def test_counters() -> None:
    assert control_groups.parse_counters(V2_EVENTS)["oom_kill"] == 3
    assert control_groups.parse_counters(V1_CONTROL) == {"oom_kill_disable": 0, "under_oom": 0, "oom_kill": 2}
    assert control_groups.parse_counters("nonsense\noom_kill x\n\n") == {}


@pytest.mark.parametrize(
    ("groups", "mounts", "files"),
    [
        (
            "0::/user.slice/user-1000.slice/session-3.scope\n",
            V2_MOUNT,
            ["/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope/memory.events"],
        ),
        ("0::/\n", V2_MOUNT, ["/sys/fs/cgroup/memory.events"]),  # inside a container with its own cgroup namespace
        (
            "9:name=systemd:/\n4:memory:/jobs/7\n3:cpu,cpuacct:/\n0::/\n",
            V1_MOUNTS,
            ["/sys/fs/cgroup/unified/memory.events", "/sys/fs/cgroup/memory/jobs/7/memory.oom_control"],
        ),
        ("4:memory:/docker/0123abcd\n", DOCKER_V1_MOUNT, ["/sys/fs/cgroup/memory/memory.oom_control"]),
        ("4:memory:/docker/other\n", DOCKER_V1_MOUNT, ["/sys/fs/cgroup/memory/memory.oom_control"]),
        ("", V2_MOUNT, []),
        ("0::/\n", "", []),
        ("4:memory:/a:b\n", V1_MOUNTS, ["/sys/fs/cgroup/memory/a:b/memory.oom_control"]),
    ],
)
def test_where_the_counters_are(groups: str, mounts: str, files: list[str]) -> None:
    assert control_groups.counter_files(groups, mounts) == files


def test_rereading(tmp_path: Path) -> None:
    file = tmp_path / "memory.events"
    assert control_groups.reread(str(file)) is None
    file.write_text("low 0\nhigh 0\nmax 0\noom 0\n")  # before Linux 4.13
    assert control_groups.reread(str(file)) is None
    file.write_text(V2_EVENTS)
    memory = control_groups.reread(str(file))
    assert memory == Memory(str(file), 3, 4)
    assert control_groups.from_json(control_groups.as_json(memory)) == memory
    assert control_groups.from_json(control_groups.as_json(None)) is None


# --- the kernel log --------------------------------------------------------------------------------------------------

KMSG = (
    "6,1339,5140900123,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    "oom_memcg=/jobs/7,task_memcg=/jobs/7,task=python3,pid=4242,uid=0\n",
    "3,1340,5140900456,-,caller=T4242;Memory cgroup out of memory: Killed process 4242 (python3) total-vm:9000kB, "
    "anon-rss:8000kB, file-rss:0kB\n SUBSYSTEM=x\n",
    "6,1341,5141000000,-;pt_main_thread[4243]: segfault at 0 ip 007f sp 007f error 4 in libtorch_cuda.so[7f+1]\n",
    "6,1342,5142000000,-;traps: python[4244] general protection fault ip:7f sp:7f error:0 in libc.so.6[7f+1]\n",
    "4,1343,5143000000,-;NVRM: Xid (PCI:0000:41:00): 31, pid=4245, name=python, Ch 00000008, intr 00000000\n",
    "4,1344,5143000001,-;NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', GPU has fallen off the bus.\n",
    "6,1345,5144000000,-;eth0: link up\n",
)


def kernel_lines(*records: str) -> tuple[KernelLine, ...]:
    return tuple(line for record in records if (line := kernel_log.parse_kmsg(record)))


def test_kernel_words() -> None:
    words = kernel_log.parse_words(kernel_lines(*KMSG))
    assert [(word.kind, word.pid) for word in words] == [
        ("oom", 4242),
        ("oom", 4242),
        ("fault", 4243),
        ("fault", 4244),
        ("gpu", 4245),
        ("gpu", None),
    ]
    assert words[0].line.seconds == pytest.approx(5140.900123)


def test_dmesg_text() -> None:
    text = (
        "[    0.000000] Linux version 6.1\n"
        "[ 5140.900456][ T4242] Out of memory: Killed process 4242 (python3) total-vm:9000kB\n"
        "<6>[12345.678901] Out of memory: Kill process 7 (python) score 900 or sacrifice child\n"
        "no stamp\n"
    )
    lines = kernel_log.parse_dmesg(text)
    assert [line.seconds for line in lines] == [0.0, 5140.900456, 12345.678901]
    assert [word.pid for word in kernel_log.parse_words(lines)] == [4242, 7]


@given(st.text())
def test_parsers_take_any_text(text: str) -> None:
    control_groups.parse_counters(text)
    control_groups.counter_files(text, V2_MOUNT)
    control_groups.counter_files("0::/\n", text)
    kernel_log.parse_kmsg(text)
    kernel_log.parse_words([*kernel_log.parse_dmesg(text), KernelLine(0, text)])


# --- the judgement ---------------------------------------------------------------------------------------------------

BEFORE = Memory("/g/memory.events", 3)
BOOT = KernelLine(0.0, "Linux version 6.1")
WHOLE = KernelLog((BOOT,))


def test_no_evidence_no_claim() -> None:
    told = judge(Exit(-9), None, None, None)
    assert told.oom is None
    assert told.evidence == ()


def test_a_counter_that_moved_is_proof() -> None:
    told = judge(Exit(-9), BEFORE, Memory("/g/memory.events", 4), None)
    assert told.oom is True
    assert told.evidence == (
        "the count of kills for lack of memory in its control group went from 3 to 4: "
        "killed for lack of memory once (/g/memory.events)",
    )


def test_a_counter_that_did_not_move_is_proof_of_the_contrary() -> None:
    told = judge(Exit(-9), BEFORE, BEFORE, WHOLE, {4242}, 5000.0)
    assert told.oom is False
    assert "not by the kernel" in told.words()


def test_counters_of_another_group_or_that_went_back_say_nothing() -> None:
    assert judge(Exit(-9), BEFORE, Memory("/other", 9), None).oom is None
    assert judge(Exit(-9), BEFORE, Memory("/g/memory.events", 1), None).oom is None


def test_the_kernel_names_one_of_our_pids() -> None:
    log = KernelLog((BOOT, *kernel_lines(*KMSG)))
    told = judge(Exit(1), None, None, log, {17, 4242}, 5000.0)
    assert told.oom is True
    assert any("Killed process 4242 (python3)" in sentence for sentence in told.evidence)
    assert any("GPU has fallen off the bus" in sentence for sentence in told.evidence)


def test_the_kernel_killed_somebody_else() -> None:
    """The confuser: an out-of-memory kill in the same minutes, of a process that was never seen to be ours."""
    log = KernelLog((BOOT, *kernel_lines(*KMSG[:2])))
    told = judge(Exit(-9), None, None, log, {17}, 5000.0)
    assert told.oom is None
    assert told.evidence == ()


def test_a_kill_before_the_start_is_not_ours_though_the_pid_is() -> None:
    log = KernelLog((BOOT, *kernel_lines(*KMSG[:2])))
    assert judge(Exit(-9), None, None, log, {4242}, 6000.0).oom is False


def test_a_silent_kernel_log_counts_only_when_it_reaches_back() -> None:
    assert judge(Exit(-9), None, None, WHOLE, {17}, 5000.0).oom is False
    wrapped = KernelLog((KernelLine(5500.0, "eth0: link up"),))
    assert judge(Exit(-9), None, None, wrapped, {17}, 5000.0).oom is None
    assert judge(Exit(-9), None, None, KernelLog(()), {17}, 5000.0).oom is None


def test_the_hosts_pids_are_not_compared_inside_a_container() -> None:
    log = KernelLog(kernel_lines(*KMSG[:2]), own_pids=False)
    told = judge(Exit(-9), None, None, log, {4242}, 5000.0)
    assert told.oom is None
    assert told.evidence[0].startswith("the host's kernel said, of a process that cannot be matched from here: ")


def test_an_unreadable_kernel_log_is_told() -> None:
    told = judge(Exit(-9), None, None, KernelLog(None, "/dev/kmsg: Operation not permitted"))
    assert told.oom is None
    assert told.evidence == ("the kernel log cannot be read (/dev/kmsg: Operation not permitted)",)


# --- real ends ----------------------------------------------------------------------------------------------------


@LINUX
@pytest.mark.parametrize(
    ("what", "number"),
    [
        ("exit", 0),
        ("exit", 1),
        ("exit", 2),
        ("exit", 137),
        ("signal", 6),
        ("signal", 9),
        ("signal", 11),
        ("signal", 15),
    ],
)
def test_real_exits(child: Child, tmp_path: Path, what: str, number: int) -> None:
    child.start(server("end", what, number), None, tmp_path / "log")
    ended = child.wait(20)
    assert ended
    assert ended.status == (number if what == "exit" else -number)
    assert ended.oom is not True
    if ended.status == 0:
        assert ended.evidence == ()


@LINUX
def test_reading_the_real_system_never_raises() -> None:
    memory = control_groups.read_memory()
    assert memory is None or memory.kills >= 0
    assert control_groups.read_memory(2**22 + 1) is None
    log = kernel_log.read_kernel_log()
    assert log.lines is not None or log.why


@LINUX
def test_a_real_kill_for_lack_of_memory(child: Child, tmp_path: Path) -> None:
    """In a control group of its own with a small limit, where this machine lets us make one."""
    group = small_group(f"bringup-{child.run}")
    if group is None:
        pytest.skip("no control group can be made here")
    code = (
        f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        "hoard = []\n"
        "while True: hoard.append(bytearray(1 << 20))\n"
    )
    try:
        before = control_groups.reread(str(group / "memory.oom_control")) or control_groups.reread(
            str(group / "memory.events")
        )
        assert before
        child.start([sys.executable, "-S", "-c", code], None, tmp_path / "log")
        assert child.state
        child.state = replace(child.state, memory=control_groups.as_json(before))
        ended = child.wait(60)
        assert ended
        assert ended.status == -signal.SIGKILL
        assert ended.oom is True
        assert "for lack of memory" in ended.words()
    finally:
        until(lambda: removed(group), "the control group is empty")


def removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def small_group(name: str) -> Path | None:
    """A new control group with 48 MiB of memory, None where that is not ours to make."""
    for base, limit, more in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max", "memory.swap.max"),
    ):
        group = Path(base) / name
        if not os.access(base, os.W_OK) or not (Path(base) / "cgroup.procs").exists():
            continue
        try:
            group.mkdir()
            (group / limit).write_text(str(48 << 20))
        except OSError:
            removed(group)
            continue
        with contextlib.suppress(OSError):
            (group / more).write_text("0" if more.endswith("swap.max") else str(48 << 20))
        return group
    return None
