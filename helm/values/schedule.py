"""When a run starts by itself: what the schema takes for a schedule and for a time zone."""

from typing import Annotated

from pydantic import Field

# Only the look: helm prints a pattern in full, and one that knew minutes from months would fill a
# screen. templates/chaos/_schedule.tpl asks the rest and says in words what is wrong.
_FIELD = r"[*0-9A-Za-z,/\-]+"
CRON = rf"^({_FIELD}( {_FIELD}){{4}}|@(hourly|daily|weekly|monthly|yearly))?$"
_REGIONS = (
    "Africa|America|Antarctica|Arctic|Asia|Atlantic|Australia|Brazil|Canada|Chile|Etc|Europe"
    "|Indian|Mexico|Pacific|US"
)
"""Where the zones of the IANA data base lie; `Local` is none, and Kubernetes refuses it."""
_WORDS = (
    "UTC|UCT|Zulu|Universal|Greenwich|GMT|GMT0|GMT\\+0|GMT-0|CET|EET|MET|WET|EST|MST|HST|EST5EDT"
    "|CST6CDT|MST7MDT|PST8PDT|Cuba|Egypt|Eire|GB|GB-Eire|Hongkong|Iceland|Iran|Israel|Jamaica"
    "|Japan|Kwajalein|Libya|Navajo|NZ|NZ-CHAT|PRC|Poland|Portugal|ROC|ROK|Singapore|Turkey|W-SU"
)
"""Zones of the same data base that lie in no region."""
ZONE = rf"^({_WORDS}|({_REGIONS})(/[A-Z][A-Za-z0-9_+\-]*){{1,2}})$"
FORMS = {
    CRON: 'five fields of cron, `@daily` or the like, or `""`',
    ZONE: "a time zone, such as `Europe/Berlin`",
}
"""Pattern → what it asks for, in words."""

Schedule = Annotated[str, Field(pattern=CRON, max_length=64)]
TimeZone = Annotated[str, Field(pattern=ZONE, max_length=64)]
