"""The workbook's grader: practice directories, graded runs, and a course that proves itself."""
