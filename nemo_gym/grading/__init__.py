"""Find answers in model replies and compare them with the expected ones.

The functions are pure: they use no socket, process or `eval`, and a clock only to end slow expressions.

- `extraction`: the final text of a response, `\\boxed{…}`, fenced blocks
- `choices`, `math`, `numbers`, `text`, `data_formats`: extract and compare one kind of answer
- `judge_labels`: read the verdict of a judge, and keep labels out of the texts it judges
- `schema`: check data against a JSON Schema; `patterns`: regular expressions from data, with bounded work
- `language`: detect the language of a text
- `result_types`: `ExtractedAnswer`, `NoAnswer`, `Verdict`
- `latex`, `math_parsing`, `units`: parts of `math` and `numbers`
"""
