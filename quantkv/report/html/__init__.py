"""The report as one self-contained page: nothing is fetched when it is opened, from a disk or from anywhere.

``page`` makes it. The words, the warnings, the tables and what the plots draw are made here in Python, from
the same summary as every other table and figure; the scripts only draw, sort, filter and open rows.
May be imported by the report alone.
"""

from quantkv.report.html.render import page

__all__ = ["page"]
