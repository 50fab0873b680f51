"""`optree messages`: what the agents of a session said to each other, from any perspective."""

from __future__ import annotations

import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optree._cli.options import Json, SessionsDir, directory
from optree._cli.options import complete_txn as _complete
from optree._cli.screen import complain, paint, show, show_json, unpainted, working
from optree._cli.sessions import open_session, say_lost
from optree._visible import coloured
from optree.errors import SetupError
from optree.redaction import redact

if TYPE_CHECKING:
    from optree.conversation.viewer import SessionViewer
    from optree.conversation.views.sections import Ask

DAMAGED = 3
NOT_A_TERMINAL = 100
"""Columns where the output is not a terminal."""
_OF_A_MESSAGE = ("flow", "references", "during")


class MessageView(StrEnum):
    """The views."""

    TRANSCRIPTS = "transcripts"
    DIALOG = "dialog"
    PERSPECTIVE = "perspective"
    TIMELINE = "timeline"
    AGENTS = "agents"
    HEARD = "heard"
    PROPAGATION = "propagation"
    HOOKS = "hooks"
    CAUSALITY = "causality"
    FLOW = "flow"
    REFERENCES = "references"
    DURING = "during"


class MessageFormat(StrEnum):
    """How a view is shown."""

    TEXT = "text"
    JSON = "json"
    MD = "md"
    MERMAID = "mermaid"


def messages(
    *,
    txn: Annotated[
        str,
        typer.Argument(metavar="TXN|FILE", help="A session, or a file of events.", autocompletion=_complete),
    ] = "last",
    view: Annotated[
        MessageView, typer.Option("--view", help="What to look at; see below.", show_choices=False, metavar="NAME")
    ] = MessageView.TRANSCRIPTS,
    agent: Annotated[
        list[str] | None, typer.Option("--agent", metavar="A", help="Only this agent, by id or name; again for several.")
    ] = None,
    message: Annotated[str | None, typer.Option("--message", metavar="ID", help="The message that is asked about.")] = None,
    heard: Annotated[bool, typer.Option("--heard", help="In a dialog, show also in which words each agent heard it.")] = False,
    form: Annotated[
        MessageFormat, typer.Option("--format", help="text, json, md or mermaid.", show_choices=False, metavar="FORMAT")
    ] = MessageFormat.TEXT,
    sessions_dir: SessionsDir = None,
    as_json: Json = False,
) -> None:
    """Show what the agents of a session said to each other, from any perspective.

    The views, each with what may go with it:

    [bold]transcripts[/bold] each agent's messages                   --agent Jill
    [bold]dialog[/bold]      what passed between agents, each once   --agent Jack --agent Jo
    [bold]perspective[/bold] what an agent heard, thought, did, said --agent Jill
    [bold]timeline[/bold]    everything in its order
    [bold]agents[/bold]      who created whom                        --format mermaid
    [bold]heard[/bold]       who heard what
    [bold]propagation[/bold] how a content spread                    --message msg_015
    [bold]hooks[/bold]       what was heard other than it was said, with the original's words
    [bold]causality[/bold]   what each message came from             --format mermaid
    [bold]flow[/bold]        what led to a message                   --message msg_017
    [bold]references[/bold]  who has the content of a message        --message msg_012
    [bold]during[/bold]      what happened during a tool call        --message msg_105

    With --agent, only what these agents said and heard is shown: an original that a hook changed only if its author is one of them.

    Example: [bold]optree messages last --view dialog --agent Jack --agent Jill[/bold]
    """
    if view in _OF_A_MESSAGE and message is None:
        raise SetupError(f"--view {view} is about one message: add --message ID (optree messages --view timeline shows the ids)")
    viewer = _viewer(txn, sessions_dir)
    ask = _ask(viewer, agent or [], message, heard)
    form = MessageFormat.JSON if as_json else form
    if form is MessageFormat.JSON:
        _json(view, viewer, ask)
    else:
        colour = form is MessageFormat.TEXT and coloured(sys.stdout)
        show(_shown(view, viewer, ask, form, colour), redacted=True)
    for fault in viewer.faults:
        complain(fault.of(txn))
    if viewer.faults:
        raise typer.Exit(DAMAGED)


def _viewer(txn: str, sessions_dir: Path | None) -> SessionViewer:
    """Return the views of a file of events, or of a saved session."""
    from optree.conversation.viewer import SessionViewer, holds_events

    path = Path(txn)
    if path.is_file() and holds_events(path):
        with working(f"reading {path.name}"):
            return SessionViewer(path, hide=redact)
    loaded, _ = open_session(txn, directory(sessions_dir), verbatim=True)
    say_lost(loaded)
    return SessionViewer(loaded, hide=redact)


def _ask(viewer: SessionViewer, agents: list[str], message: str | None, heard: bool) -> Ask:
    """Return what is asked for, by the ids of agents and messages that are there; raises `NotFoundError`."""
    from optree.conversation.views.sections import Ask

    if message is not None:
        viewer.stream.event(message)
    return Ask(tuple(viewer.stream.agent(agent) for agent in agents), message, heard)


def _json(view: MessageView, viewer: SessionViewer, ask: Ask) -> None:
    from optree.conversation.views.rendering import hidden, value

    faults = [{"line": fault.line, "said": fault.said} for fault in viewer.faults]
    show_json(
        {"view": view.value, "agents": hidden(viewer.stream, viewer.list_agents()), "result": value(view, viewer, ask), "faults": faults}
    )


def _shown(view: MessageView, viewer: SessionViewer, ask: Ask, form: MessageFormat, colour: bool) -> str:
    from optree.conversation.views.diagrams import diagram
    from optree.conversation.views.rendering import to_markdown, to_text
    from optree.conversation.views.sections import sections

    if form is MessageFormat.MERMAID:
        return diagram(view, viewer, ask)
    listing = sections(view, viewer, ask)
    if form is MessageFormat.MD:
        return to_markdown(listing)
    width = shutil.get_terminal_size((NOT_A_TERMINAL, 24)).columns
    return to_text(listing, width, paint if colour else unpainted)
