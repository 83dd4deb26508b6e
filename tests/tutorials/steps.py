"""A tutorial as steps that a reader takes: files to save, commands to run, output to expect."""

import os
import re
import subprocess
import sys
from pathlib import Path

BLOCK = re.compile(
    r"(?:<!-- (?:file: (?P<file>\S+)|not run: (?P<reason>[^\n]+)) -->\n)?"
    r"```(?P<language>\w+)\n(?P<text>.*?)```",
    re.DOTALL,
)
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def alike(output: str) -> str:
    """Without what differs between machines: numbers, and the width of columns."""
    lines = NUMBER.sub("#", output).splitlines()
    return "\n".join(" ".join(line.split()) for line in lines).strip()


def shows(shown: str, output: str) -> bool:
    """Whether the page shows what was printed; `…` stands for what it leaves out."""
    rest = alike(output)
    for part in map(alike, shown.split("…")):
        if part not in rest:
            return False
        rest = rest[rest.index(part) + len(part) :]
    return True


def follow(page: Path, folder: Path) -> str:
    """Do what the page says, in an empty folder. Returns all that was printed."""
    bin_folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "COLUMNS": "80"}
    printed, last = "", ""
    for block in BLOCK.finditer(page.read_text()):
        text = block["text"]
        if block["reason"]:
            continue
        if block["file"]:
            (folder / block["file"]).write_text(text)
        elif block["language"] == "sh":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=1200,
            )
            assert done.returncode == 0, f"{text}{done.stdout}{done.stderr}"
            last = done.stdout
            printed += last
        elif block["language"] == "text":
            assert shows(text, last), last
        else:
            raise AssertionError(f"{page.name}: say what a block of {block['language']} is for")
    return printed
