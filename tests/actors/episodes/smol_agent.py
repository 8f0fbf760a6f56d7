"""An agent of smolagents with one tool."""

from __future__ import annotations

import json
import os
from pathlib import Path

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool  # type: ignore[untyped-decorator]
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


model = OpenAIServerModel(
    model_id=os.environ["OPENAI_MODEL"],
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
)
row = json.loads(Path(os.environ["OLMORL_ROW"]).read_text(encoding="utf-8"))
print(ToolCallingAgent(tools=[add], model=model, max_steps=4).run(str(row["prompt"])))
