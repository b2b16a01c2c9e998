"""Performance measurements: each compares measured CPU time, memory or ratios with a promise.

`__main__` runs them; `floor` and `endpoint` are the baseline; `pace` measures the machine. The others measure one part
each.
"""
