"""Programs on Strands Agents, as its documentation writes them."""

AGENTS = '''
from strands import Agent, tool
from strands.models.openai import OpenAIModel

@tool
def weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: Where.
    """
    return f"rain in {city}"

model = OpenAIModel(model_id="gpt-5")
forecaster = Agent(name="forecaster", model=model, description="Tells the weather.", tools=[weather], callback_handler=None)
triage = Agent(name="triage", model=model, system_prompt="Ask who knows.", tools=[forecaster], callback_handler=None)
print(triage("Weather?"))
'''
GRAPH = """
import asyncio
from strands import Agent
from strands.models.openai import OpenAIModel
from strands.multiagent import GraphBuilder

model = OpenAIModel(model_id="gpt-5")
builder = GraphBuilder()
builder.add_node(Agent(name="researcher", model=model, callback_handler=None), "research")
builder.add_node(Agent(name="writer", model=model, callback_handler=None), "report")
builder.add_edge("research", "report")
builder.set_entry_point("research")
builder.set_execution_timeout(600)
builder.set_graph_id("meteo")

async def main():
    async for event in builder.build().stream_async("Weather?"):
        if event.get("type") == "multiagent_node_stop":
            print(event["node_id"], str(event["node_result"].result).strip())

asyncio.run(main())
"""
