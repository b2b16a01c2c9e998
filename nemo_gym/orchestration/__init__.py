"""Evaluations as jobs of a cluster: what to submit, and the script that does it. Experimental."""
