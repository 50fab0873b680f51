"""`optree messages`: what the agents of a session said to each other, from any perspective."""

from __future__ import annotations

import shutil
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from optree._cli.options import Json, SessionsDir, WholeRun, directory
from optree._cli.options import complete_txn as _complete
from optree._cli.screen import DAMAGED, complain, painting, show, show_json, working
from optree._cli.sessions import open_run, open_session, say_lost, say_run
from optree._store.reading.recovery import Loaded
from optree.errors import NotFoundError, SetupError
from optree.redaction import redact

if TYPE_CHECKING:
    from optree.conversation.viewer import SessionViewer
    from optree.conversation.views.sections import Ask

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
        MessageView, typer.Option("--view", help="What to look at; see above.", show_choices=False, metavar="NAME")
    ] = MessageView.TRANSCRIPTS,
    agent: Annotated[
        list[str] | None, typer.Option("--agent", metavar="A", help="Only this agent, by id or name; again for several.")
    ] = None,
    message: Annotated[str | None, typer.Option("--message", metavar="ID", help="The message that is asked about.")] = None,
    heard: Annotated[bool, typer.Option("--heard", help="In a dialog, show also in which words each agent heard it.")] = False,
    form: Annotated[
        MessageFormat, typer.Option("--format", help="text, json, md or mermaid.", show_choices=False, metavar="FORMAT")
    ] = MessageFormat.TEXT,
    whole_run: WholeRun = False,
    sessions_dir: SessionsDir = None,
    as_json: Json = False,
) -> None:
    """Show what the agents of a session said to each other, from any perspective, or with --run of each that the program recorded.

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
    form = MessageFormat.JSON if as_json else form
    if whole_run and form is MessageFormat.MERMAID:
        raise SetupError("a diagram shows one session, and --run means several: name one of them (optree ls)")
    asked = _Question(view, tuple(agent or ()), message, heard)
    code = 0
    if whole_run and not _is_of_events(txn):
        run = open_run(txn, directory(sessions_dir), verbatim=True)
        code = 0 if run.is_whole else DAMAGED
        found = _those_with([(loaded.txn, _of_session(loaded)) for loaded, _ in run.sessions], asked)
        if form is MessageFormat.JSON:
            show_json({"run": run.id, "sessions": [{"txn": name, **_plain(viewer, asked)} for name, viewer in found]})
        else:
            show("\n\n".join(f"session {name}\n{_shown(viewer, asked, form)}" for name, viewer in found), redacted=True)
    else:
        viewer, loaded = _viewer(txn, sessions_dir)
        found = [(txn, viewer)]
        if form is MessageFormat.JSON:
            show_json(_plain(viewer, asked))
        else:
            show(_shown(viewer, asked, form), redacted=True)
            if loaded is not None:
                say_run(txn, loaded.txn, directory(sessions_dir), "messages")
    for name, viewer in found:
        for fault in viewer.faults:
            complain(fault.of(name))
            code = DAMAGED
    if code:
        raise typer.Exit(code)


class _Question(NamedTuple):
    """A question as the command line has it."""

    view: MessageView
    agents: tuple[str, ...]
    message: str | None
    heard: bool

    def of(self, viewer: SessionViewer) -> Ask:
        """Return it with the ids of agents and messages that are there; raises `NotFoundError`."""
        from optree.conversation.views.sections import Ask

        if self.message is not None:
            viewer.stream.event(self.message)
        return Ask(tuple(viewer.stream.agent(agent) for agent in self.agents), self.message, self.heard)


def _those_with(viewers: list[tuple[str, SessionViewer]], asked: _Question) -> list[tuple[str, SessionViewer]]:
    """Return the sessions that have the agents and the message that are asked for; raises `NotFoundError` if none has."""
    found: list[tuple[str, SessionViewer]] = []
    for name, viewer in viewers:
        try:
            asked.of(viewer)
        except NotFoundError:
            if not found and name == viewers[-1][0]:
                raise
            continue
        found.append((name, viewer))
    return found


def _viewer(txn: str, sessions_dir: Path | None) -> tuple[SessionViewer, Loaded | None]:
    """Return the views of a file of events, or of a saved session, with that session."""
    from optree.conversation.viewer import SessionViewer

    if _is_of_events(txn):
        with working(f"reading {Path(txn).name}"):
            return SessionViewer(Path(txn), hide=redact), None
    loaded, _ = open_session(txn, directory(sessions_dir), verbatim=True)
    return _of_session(loaded), loaded


def _is_of_events(txn: str) -> bool:
    from optree.conversation.viewer import holds_events

    return Path(txn).is_file() and holds_events(Path(txn))


def _of_session(loaded: Loaded) -> SessionViewer:
    from optree.conversation.viewer import SessionViewer

    say_lost(loaded)
    return SessionViewer(loaded, hide=redact)


def _plain(viewer: SessionViewer, asked: _Question) -> dict[str, Any]:
    from optree.conversation.views.rendering import hidden, value

    result = value(asked.view, viewer, asked.of(viewer))
    faults = [{"line": fault.line, "said": fault.said} for fault in viewer.faults]
    return {"view": asked.view.value, "agents": hidden(viewer.stream, viewer.list_agents()), "result": result, "faults": faults}


def _shown(viewer: SessionViewer, asked: _Question, form: MessageFormat) -> str:
    from optree.conversation.views.diagrams import diagram
    from optree.conversation.views.rendering import to_markdown, to_text
    from optree.conversation.views.sections import sections

    if form is MessageFormat.MERMAID:
        return diagram(asked.view, viewer, asked.of(viewer))
    listing = sections(asked.view, viewer, asked.of(viewer))
    if form is MessageFormat.MD:
        return to_markdown(listing)
    width = shutil.get_terminal_size((NOT_A_TERMINAL, 24)).columns
    return to_text(listing, width, painting())
