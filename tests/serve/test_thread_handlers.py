"""Threads name the request that they work for, and no earlier one."""

import subprocess
import sys
from textwrap import dedent

SCRIPT = dedent(
    """
    import asyncio, threading
    from concurrent.futures import ThreadPoolExecutor
    import anyio.to_thread
    from nemo_gym.serve.process_status import NO_LABEL, handler_label, handler_name, own_status
    from nemo_gym.serve.thread_handlers import watch_threads

    watch_threads()
    REQUEST = handler_label(handler_name("server", "POST", "/verify"), (7, 1))

    async def main():
        own_status.label[:] = REQUEST
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(own_status.thread_label).result() == REQUEST
            assert await anyio.to_thread.run_sync(own_status.thread_label) == REQUEST
            assert await asyncio.to_thread(own_status.thread_label) == REQUEST
            seen = []
            thread = threading.Thread(target=lambda: seen.append(own_status.thread_label()))
            thread.start()
            thread.join()
            assert seen == [REQUEST]
            own_status.label[:] = NO_LABEL
            assert pool.submit(own_status.thread_label).result() == NO_LABEL, "executor"
            assert await anyio.to_thread.run_sync(own_status.thread_label) == NO_LABEL, "anyio"
            assert await asyncio.to_thread(own_status.thread_label) == NO_LABEL, "asyncio"
            assert not own_status._threads, "an idle thread is listed"

    asyncio.run(main())
    """
)


def test_threads_of_pools_do_not_keep_the_request_that_started_them():
    """A crash or a block would be counted against a rollout that only happened to start the thread."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_functions_that_end_a_process_take_arguments_by_name():
    """Code of a server that works outside of a run must work in one."""
    script = "import os\nfrom nemo_gym.serve.thread_handlers import watch_threads\nwatch_threads()\nos._exit(status=7)"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 7, done.stderr
