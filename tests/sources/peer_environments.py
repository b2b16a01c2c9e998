"""An Aviary task dataset of a user, named as `module:Name`."""

from aviary.core import Environment, Message, TaskDataset, Tool


class Vault(Environment):
    """The tools open a vault with the right code; the state is in the instance."""

    def __init__(self, code: int, tries: int = 3) -> None:
        self.code, self.tries, self.opened = code, tries, False

    async def reset(self):
        def turn(digits: int) -> str:
            """Turn the wheel.

            Args:
                digits: The code.
            """
            self.tries -= 1
            self.opened = digits == self.code
            return "open" if self.opened else f"closed, {self.tries} tries left"

        self.tools = [Tool.from_function(turn)]
        return [Message(content=f"Open the vault. Its code is {self.code}.")], self.tools

    async def step(self, action):
        if not getattr(action, "tool_calls", None):
            return [Message(content="Use the tool.")], 0.0, False, False
        messages = await self.exec_tool_calls(action)
        return messages, float(self.opened), self.opened, self.tries <= 0 and not self.opened


class Vaults(TaskDataset):
    """Forty vaults."""

    def __len__(self) -> int:
        return 40

    def get_new_env_by_idx(self, idx: int) -> Vault:
        return Vault(code=1000 + idx)
