"""Programs as smolagents' documentation writes them."""

MANAGED = '''
from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

@tool
def weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: The city to tell the weather of.
    """
    return f"rain in {city}"

model = OpenAIModel(model_id="gpt-5")
forecaster = ToolCallingAgent(tools=[weather], model=model, name="forecaster", description="Tells the weather.", max_steps=10)
manager = CodeAgent(tools=[], model=model, managed_agents=[forecaster], name="manager", additional_authorized_imports=["time"])
answer = manager.run("Weather?")
print("=>", answer)
'''
PLAIN = """
from smolagents import CodeAgent, OpenAIModel

agent = CodeAgent(tools=[], model=OpenAIModel(model_id="gpt-5"))
print("=>", agent.run("Weather?"))
"""
STREAMED = """
from smolagents import CodeAgent, FinalAnswerStep, OpenAIModel

agent = CodeAgent(tools=[], model=OpenAIModel(model_id="gpt-5"), stream_outputs=True)
for step in agent.run("Weather?", stream=True):
    if isinstance(step, FinalAnswerStep):
        print("=>", step.output)
"""
