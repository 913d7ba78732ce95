"""The workbook's grader: practice directories, graded runs, and a course that proves itself."""

__version__ = "1.0.0"
