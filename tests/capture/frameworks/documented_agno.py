"""Programs on Agno, as its documentation writes them."""

AGENT = '''
from agno.agent import Agent
from agno.models.openai import OpenAIChat

def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"

agent = Agent(name="forecaster", model=OpenAIChat(id="gpt-5"), tools=[weather], instructions="Tell the weather", markdown=True)
print(agent.run("Weather?").content)
'''
STREAMED = """
from agno.agent import Agent, RunEvent
from agno.models.openai import OpenAIChat

agent = Agent(name="forecaster", model=OpenAIChat(id="gpt-5"))
for event in agent.run("Weather?", stream=True):
    if event.event == RunEvent.run_content:
        print(event.content, end="", flush=True)
print()
"""
TEAM = '''
import asyncio

from agno.agent import Agent
from agno.models.openai import OpenAIChat
from agno.team import Team

def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"

forecaster = Agent(id="forecaster", name="forecaster", role="Tell the weather", model=OpenAIChat(id="gpt-5"), tools=[weather])
desk = Team(name="desk", model=OpenAIChat(id="gpt-5"), members=[forecaster])
print(asyncio.run(desk.arun("Weather?")).content)
'''
WORKFLOW = '''
from agno.agent import Agent
from agno.models.openai import OpenAIChat
from agno.workflow import Step, Workflow

def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"

forecaster = Agent(name="forecaster", model=OpenAIChat(id="gpt-5"), tools=[weather])
writer = Agent(name="writer", model=OpenAIChat(id="gpt-5"))
outlook = Workflow(name="outlook", steps=[Step(name="look", agent=forecaster), Step(name="write", agent=writer)])
print(outlook.run("Weather?").content)
'''
