"""The main program of a hidden test, in a box: run the code of the test and print its outcome as the last line."""

import json
import sys

_namespace = {"__name__": "hidden_test"}
try:
    sys.path.insert(0, "")
    exec(compile("CODE", "<hidden test>", "exec"), _namespace)
    _outcome = {"value": _namespace["result"]}
    _line = json.dumps(_outcome, allow_nan=False)
except BaseException as error:  # also SystemExit
    _line = json.dumps({"raises": type(error).__name__})
sys.stdout.write(f"\n{_line}\n")
sys.stdout.flush()
