"""Memory control groups, by recorded files of both versions."""

import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dfx_agent.node.host import cgroup
from dfx_agent.node.host.cgroup import MemoryGroup, memory_groups, parse_cgroup, parse_counts

V1 = "9:name=systemd:/\n8:pids:/\n4:memory:/kubepods/pod7/abc\n1:cpu:/\n0::/\n"
V2 = "0::/kubepods/pod7/abc\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (V1, ("/kubepods/pod7/abc", False)),
        (V2, ("/kubepods/pod7/abc", True)),
        ("3:cpu,memory:/x\n", ("/x", False)),
        ("0::/../other\n", None),
        ("1:name=systemd:/\n", None),
        ("", None),
    ],
)
def test_the_group_that_limits_memory(text, found):
    assert parse_cgroup(text) == found


@example("0 \u00b9")  # a superscript one is a digit, and no number
@given(st.text())
def test_any_text_is_read(text):
    parse_cgroup(text)
    parse_counts(text)


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_version_2_has_limit_use_without_file_pages_and_kills(tmp_path):
    write(
        tmp_path,
        memory__max="1000\n",
        memory__current="700\n",
        memory__stat="anon 400\ninactive_file 200\nactive_file 100\n",
        memory__events="low 0\nhigh 0\nmax 8\noom 2\noom_kill 1\n",
    )
    group = MemoryGroup(str(tmp_path), is_v2=True)
    assert (group.limit_bytes(), group.used_bytes(), group.num_oom_kills()) == (1000, 500, 1)
    write(tmp_path, memory__max="max\n")
    assert group.limit_bytes() is None


def test_version_1_has_the_same(tmp_path):
    write(
        tmp_path,
        memory__limit_in_bytes="1000\n",
        memory__usage_in_bytes="700\n",
        memory__stat="cache 300\ninactive_file 1\ntotal_inactive_file 200\n",
        memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    )
    group = MemoryGroup(str(tmp_path), is_v2=False)
    assert (group.limit_bytes(), group.used_bytes(), group.num_oom_kills()) == (1000, 500, 3)
    write(tmp_path, memory__limit_in_bytes="9223372036854771712\n")
    assert group.limit_bytes() is None


def test_a_group_that_is_gone_reports_nothing(tmp_path):
    group = MemoryGroup(str(tmp_path / "gone"), is_v2=True)
    assert (group.limit_bytes(), group.used_bytes(), group.num_oom_kills()) == (None, None, None)


@pytest.mark.parametrize(("text", "root", "name"), [
    (V2, "", "memory.max"), (V2, "unified", "memory.max"), (V1, "memory", "memory.limit_in_bytes"),
])  # fmt: skip
def test_groups_above_count_too_innermost_first(tmp_path, monkeypatch, text, root, name):
    top = tmp_path / root
    for path in ("kubepods/pod7/abc", "kubepods/pod7"):  # kubepods itself is not seen
        write(top / path, **{name.replace(".", "__"): "5\n"})
    read = cgroup._read
    own = {"/proc/7": text}
    monkeypatch.setattr(cgroup, "_read", lambda d, n: own[d] if n == "cgroup" else read(d, n))
    groups = memory_groups(7, str(tmp_path))
    assert [os.path.relpath(g.path, top) for g in groups] == ["kubepods/pod7/abc", "kubepods/pod7"]
    assert {group.limit_bytes() for group in groups} == {5}


def test_this_process():
    """Whatever machine this is: nothing raises, and what is told is a number."""
    for group in memory_groups(os.getpid()):
        assert (group.used_bytes() or 0) >= 0
    assert memory_groups(2**22 + 1) == ()
