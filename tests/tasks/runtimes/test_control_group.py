"""The files of both versions of control groups, in folders that stand for the kernel's."""

import os
from pathlib import Path

from gatepost.tasks.runtimes.control_group import ControlGroup


def make_group(folder: Path, *names: str) -> Path:
    """A folder with files as the kernel would make them."""
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch()
    return folder


def test_version_2_has_one_group_with_all_limits(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    files = ("pids.max", "memory.max", "memory.swap.max", "cpu.max", "cgroup.procs", "cgroup.kill")
    folder = make_group(tmp_path / "gatepost" / "s1", *files)
    group = ControlGroup("s1", str(tmp_path))
    group.create(64, 1000, 1.5)
    assert group.folders == [str(folder)]
    assert group.limits_processes and group.limits_memory
    read = {name: (folder / name).read_text() for name in files[:4]}
    assert read == {
        "pids.max": "64", "memory.max": "1000", "memory.swap.max": "0", "cpu.max": "150000 100000"
    }  # fmt: skip
    group.add_process(os.getpid())
    assert group.list_pids() == {os.getpid()}
    group.kill_all()
    assert (folder / "cgroup.kill").read_text() == "1"


def test_version_1_has_a_group_for_each_controller(tmp_path: Path) -> None:
    pids = make_group(tmp_path / "pids" / "gatepost" / "s1", "pids.max", "cgroup.procs")
    memory = make_group(
        tmp_path / "memory" / "gatepost" / "s1", "memory.limit_in_bytes", "cgroup.procs"
    )
    group = ControlGroup("s1", str(tmp_path))
    group.create(64, 1000, None)
    assert group.folders == [str(pids), str(memory)]
    assert (pids / "pids.max").read_text() == "64"
    assert (memory / "memory.limit_in_bytes").read_text() == "1000"
    assert group.limits_processes and group.limits_memory


def test_a_limit_that_the_kernel_does_not_take_is_not_set(tmp_path: Path) -> None:
    make_group(tmp_path / "pids" / "gatepost" / "s1", "cgroup.procs")
    group = ControlGroup("s1", str(tmp_path))
    group.create(64, 1000, None)
    assert not group.limits_processes


def test_a_group_that_does_not_take_the_process_limits_nothing_and_spares_the_others(
    tmp_path: Path,
) -> None:
    pids = make_group(tmp_path / "pids" / "gatepost" / "s1", "pids.max")
    memory = make_group(
        tmp_path / "memory" / "gatepost" / "s1", "memory.limit_in_bytes", "cgroup.procs"
    )
    group = ControlGroup("s1", str(tmp_path))
    group.create(64, 1000, None)
    assert group.folders == [str(pids), str(memory)]
    group.add_process(os.getpid())
    assert group.folders == [str(memory)] and not group.limits_processes
    assert group.list_pids() == {os.getpid()} and group.limits_memory


def test_a_machine_without_control_groups_has_none(tmp_path: Path) -> None:
    group = ControlGroup("s1", str(tmp_path / "none"))
    group.create(64, 1000, None)
    group.add_process(1)
    group.kill_all()
    group.remove()
    assert group.folders == [] and group.list_pids() == set()
    assert not group.limits_processes and not group.limits_memory


def test_only_a_session_with_a_limit_of_cpu_is_in_a_group_for_it(tmp_path: Path) -> None:
    cpu = make_group(tmp_path / "cpu" / "gatepost" / "s1", "cpu.cfs_quota_us", "cgroup.procs")
    unlimited, limited = ControlGroup("s1", str(tmp_path)), ControlGroup("s1", str(tmp_path))
    unlimited.create(64, 1000, None)
    assert unlimited.folders == []
    limited.create(64, 1000, 1.5)
    assert limited.folders == [str(cpu)]
    assert (cpu / "cpu.cfs_quota_us").read_text() == "150000"


def test_groups_of_a_killed_supervisor_are_found_and_removed(tmp_path: Path) -> None:
    for controller in ("pids", "memory"):
        (tmp_path / controller / "gatepost" / "s1").mkdir(parents=True)
    group = ControlGroup("s1", str(tmp_path))
    group.find()
    assert len(group.folders) == 2
    group.remove()
    group.find()
    assert group.folders == []
