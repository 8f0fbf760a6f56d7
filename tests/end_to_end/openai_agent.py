"""An agent with OpenAI's own client, which streams: it asks three times and gives a reward itself."""

from __future__ import annotations

import os
from pathlib import Path

from openai import OpenAI

client = OpenAI(max_retries=2)
model = client.models.list().data[0].id
history = [{"role": "user", "content": "say things"}]
text = ""
for _ in range(3):
    stream = client.chat.completions.create(model=model, messages=history, stream=True)  # type: ignore[call-overload]
    text = "".join(part.choices[0].delta.content or "" for part in stream if part.choices)
    history += [{"role": "assistant", "content": text}, {"role": "user", "content": "more"}]
Path(os.environ["OLMORL_REWARD"]).write_text(str(len(set(text)) % 7 / 6), encoding="utf-8")
