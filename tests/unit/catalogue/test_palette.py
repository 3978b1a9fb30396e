"""The terminal, the report and the page paint a stage in one colour."""

import re
from pathlib import Path

from dfx_agent.catalogue import palette

PAGE = Path(__file__).parents[3] / "dfx_agent" / "web" / "static" / "palette.js"


def test_colours_are_those_of_the_page():
    stages = PAGE.read_text().partition("const STAGES")[2].partition("]);")[0]
    assert dict(re.findall(r'\["(\w+)", "(#\w+)"\]', stages)) == palette.STAGE_COLORS
