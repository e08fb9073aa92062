"""The command line: words in, one call of `controls` or `reading`, rows out.

A verb finds the running tree through its runtime file. Lists take `--json` and then use the column names of the
tables. An error is one line with cause and remedy and an exit code: 2 where a person must change something, 1 else.
Modules that take seconds to import are imported by the verbs that need them.

`place` finds the tree and its database for a verb. The verbs are in `processes` (what runs), `looking` (what is and
was), `steering` (what the agent is to do) and `fleet` (what is rented). A verb of one word is added by its file; a
group of verbs, such as `wakes`, is given its name here.
"""

from __future__ import annotations

import sys

import typer
from typer.exceptions import TyperException

from fleet_agent.cli import fleet, looking, processes, steering
from fleet_agent.cli.place import stop
from fleet_agent.errors import FixSetup, FleetAgentError

app = typer.Typer(
    help="The operator of a rented GPU proving fleet.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for file in (processes, looking, steering, fleet):
    app.add_typer(file.verbs)
app.add_typer(steering.objective_verbs, name="objective")
app.add_typer(steering.policy_verbs, name="policy")
app.add_typer(steering.token_verbs, name="token")
app.add_typer(steering.wakes_verbs, name="wakes")
app.add_typer(steering.inbox_verbs, name="inbox")
app.add_typer(fleet.boxes_verbs, name="boxes")
app.add_typer(fleet.hosts_verbs, name="hosts")


def main() -> None:
    """The entry point: every error a person can do something about is one line."""
    try:
        sys.exit(app(standalone_mode=False))
    except FixSetup as error:
        stop(str(error), 2)
    except FleetAgentError as error:
        stop(str(error), 1)
    except TyperException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "fleet-agent"
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error)
            sys.exit(2)
        stop(f"{error} → {command} --help", 2)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
