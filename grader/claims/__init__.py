"""The claims that a course makes, kind by kind. check.py gathers and proves them.

Each module yields jobs: small functions that prove a few claims and can run in any order.
"""
