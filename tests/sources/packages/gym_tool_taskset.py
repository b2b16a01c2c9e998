"""A taskset of verifiers 0.4 with a server of tools, which keeps state for each rollout."""

from zlib import crc32

import verifiers.v1 as vf

__all__ = ["ShelfTaskset"]


class ShelfData(vf.TaskData):
    answer: str


class ShelfTools(vf.Toolset[vf.ToolsetConfig, vf.State]):
    @vf.tool
    async def look(self, shelf: int) -> str:
        """Look at a shelf."""
        if shelf == 2:
            raise ValueError("shelf 2 is empty")
        return f"On shelf {shelf} is the number {shelf * 11}."


class ShelfTask(vf.Task[ShelfData, vf.State, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [ShelfTools(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, trace) -> float:
        return float(trace.last_reply == f"It is {self.data.answer}.")

    @vf.metric
    async def calls(self, trace) -> float:
        return float(len(trace.tool_messages))


class ShelfTaskset(vf.Taskset[ShelfTask, vf.TasksetConfig]):
    def load(self):
        for number in range(8):
            data = ShelfData(prompt=f"What is the number of {number}?", answer=str(number % 3))
            yield ShelfTask(data, self.config.task)


def policy(text: str, number: int):
    """Call tools by the last text and the turn; in the end, say a number."""
    value = crc32(f"{text}:{number}".encode())
    if number == 0:
        return {"tool_calls": [{"name": "shelf_tools_look", "arguments": {"shelf": shelf}} for shelf in (value % 4, 2)]}
    if number == 1:
        calls = [{"name": "burn", "arguments": {}}, {"name": "shelf_tools_look", "arguments": "{not json"}]
        return {"text": "so", "tool_calls": [calls[value % 2]]}
    return f"It is {value % 3}."


if __name__ == "__main__":
    ShelfTools.run()
