"""Measuring a running server: a decode rate that is right, or a reason why there is none.

stream -> timeline -> window is the way of a number: bytes as they came, tokens over time, the steady rate.
"""
