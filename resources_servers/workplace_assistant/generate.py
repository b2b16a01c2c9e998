"""Write tasks for an assistant in an office: `python generate.py OUT --rows 40 --seed 0`."""

import json
import random
from typing import Any

from nemo_gym.data.generator_command import run_generator
from resources_servers.workplace_assistant.app import TOOLS
from resources_servers.workplace_assistant.templates import TEMPLATES, Task
from resources_servers.workplace_assistant.world import ME, NOW

SYSTEM = f"""You are the assistant of {ME} and work with tools on their email, calendar, website analytics, tasks and
customers. It is {NOW:%A, %Y-%m-%d %H:%M}. Do what is asked, exactly as it is worded and nothing else; look up what you
need. Dates are like 2026-03-12, times like 2026-03-12 09:30:00. When you are done, say so in one sentence."""

ABOUT = {
    "name": "All or part of a name.",
    "email_id": "The id of the email.",
    "event_id": "The id of the event.",
    "task_id": "The id of the task.",
    "customer_id": "The id of the customer.",
    "visitor_id": "The id of the visitor.",
    "field": "The name of the field.",
    "new_value": "What the field is set to.",
    "query": "What to look for.",
    "date_min": "The earliest time, like 2026-03-12 00:00:00.",
    "date_max": "The latest time, like 2026-03-12 23:59:59.",
    "time_min": "The earliest date or time.",
    "time_max": "The latest date or time.",
    "recipient": "The email address of the recipient.",
    "subject": "The subject.",
    "body": "The text.",
    "event_name": "The name of the event.",
    "participant_email": "The email address of the participant.",
    "event_start": "When it starts, like 2026-03-12 09:30:00.",
    "duration": "Minutes.",
    "traffic_source": "direct, referral, search engine or social media.",
    "value_to_plot": "total_visits, session_duration_seconds, user_engaged or a traffic source.",
    "plot_type": "bar, line, scatter or histogram.",
    "task_name": "The name of the task.",
    "assigned_to_email": "The email address of the colleague it is assigned to.",
    "list_name": "Backlog, In Progress, In Review or Completed.",
    "due_date": "When it is due, like 2026-03-12.",
    "board": "Back end, Front end or Design.",
    "customer_name": "The name of the customer.",
    "customer_email": "The email address of the customer.",
    "customer_phone": "The phone number of the customer.",
    "product_interest": "Software, Hardware, Services, Consulting or Training.",
    "status": "Lead, Qualified, Proposal, Won or Lost.",
    "last_contact_date": "When the customer was last spoken to, like 2026-03-12.",
    "last_contact_date_min": "The earliest date.",
    "last_contact_date_max": "The latest date.",
    "follow_up_by": "When to follow up, like 2026-03-12.",
    "follow_up_by_min": "The earliest date.",
    "follow_up_by_max": "The latest date.",
    "notes": "Notes.",
}


def row(category: str, task: Task) -> dict[str, Any]:
    instruction, calls = task
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": instruction}]
    tools = [tool.schema(ABOUT) for tool in TOOLS.values()]
    return {
        "responses_create_params": {"input": messages, "tools": tools, "parallel_tool_calls": False},
        "ground_truth": [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in calls],
        "category": category,
    }


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` different tasks, the kinds in turn."""
    draw = random.Random(seed)
    kinds = [(category, template) for category, templates in TEMPLATES.items() for template in templates]
    draw.shuffle(kinds)
    tasks: dict[str, dict[str, Any]] = {}
    for number in range(count * 20):
        category, template = kinds[number % len(kinds)]
        task = template(draw)
        tasks.setdefault(task[0], row(category, task))
        if len(tasks) == count:
            return list(tasks.values())
    raise SystemExit(f"there are not {count} different tasks for this seed")


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
