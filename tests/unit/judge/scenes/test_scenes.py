"""Each scene of the folder, before the judges of a node and before those of a hub."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from scene_file import Expected, Scene, SceneError, read_scenes
from scene_player import PIPELINES, Player

from dfx_agent.snapshot import Verdict

FILES = sorted(Path(__file__).parent.glob("*.scene"))
DOCS = Path(__file__).parents[4] / "docs" / "how-to" / "send-us-a-scene.md"
SCENES = [(path.stem, scene) for path in FILES for scene in read_scenes(path)]


def differences(expected: Expected, verdict: Verdict) -> list[str]:
    """What is not as expected."""
    wanted: dict[str, object] = {"state": expected.state}
    if expected.ranks is not None:
        wanted["ranks"] = expected.ranks
    if expected.cause is not None:
        wanted["cause"] = expected.cause
    result = [
        f"{name}: expected {value!r}, concluded {getattr(verdict, name)!r}"
        for name, value in wanted.items()
        if getattr(verdict, name) != value
    ]
    if expected.sentence and not matches(verdict.summary, expected.sentence):
        result.append(f"sentence: expected {expected.sentence!r}")
    missing = [
        line
        for line in expected.evidence
        if not any(matches(seen, line) for seen in verdict.evidence)
    ]
    return result + [f"evidence: expected {line!r}" for line in missing]


def matches(text: str, pattern: str) -> bool:
    """``*`` in the pattern is any text."""
    return fnmatchcase(text, pattern.replace("[", "[[]"))


@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("scene", [pytest.param(s, id=f"{f}: {s.name}") for f, s in SCENES])
def test_scene(scene: Scene, pipeline: str):
    player = Player(scene, pipeline)
    for expected in sorted(scene.expected, key=lambda item: item.at):
        verdict = player.verdict(expected.kind, expected.at)
        found = differences(expected, verdict)
        assert not found, "\n".join([
            f"{expected.place}: at {expected.at:g} s on a {pipeline}:", *found,
            f"the verdict: {verdict.summary}", *verdict.evidence,
        ])  # fmt: skip


def test_the_example_of_the_docs_is_a_scene(tmp_path):
    (example,) = re.findall(r"```\n(scene .+?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "x.scene"
    path.write_text(example)
    for pipeline in PIPELINES:
        test_scene(read_scenes(path)[0], pipeline)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rank 1: is in backward", "a scene begins with: scene NAME"),
        ("scene x\nrank 1 is in backward", "cannot read: rank 1 is in backward"),
        ("scene x\n'at 5 s: hang maybe'", "cannot read: 'at 5 s: hang maybe'"),
        ('scene x\n"Rank 1 is stuck."', "a sentence stands below its expectation"),
    ],
)
def test_a_line_that_is_no_part_of_the_form_is_named(tmp_path, text, said):
    path = tmp_path / "x.scene"
    path.write_text(text)
    with pytest.raises(SceneError, match=re.escape(said)):
        read_scenes(path)


@pytest.mark.parametrize("line", ["rank 9: is in backward", "rank 1: dances"])
def test_a_scene_that_cannot_be_played_names_its_line(tmp_path, line):
    path = tmp_path / "x.scene"
    path.write_text(f"scene x\n{line}")
    (scene,) = read_scenes(path)
    with pytest.raises(SceneError, match=r"x\.scene:2: "):
        Player(scene, "node").verdict("hang", 5)
