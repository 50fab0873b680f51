"""Programs as DSPy's documentation writes them, which are run as a user runs them, and the answers that they get."""

from tests.capture.provider import Reply

USAGE = {
    "prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17, "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 3},
}  # fmt: skip


def says(**fields):
    """Return an answer of OpenAI's chat with these fields, as DSPy asks for them."""
    told = "\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in {**fields, "completed": ""}.items())
    choice = {"index": 0, "message": {"role": "assistant", "content": told}, "finish_reason": "stop"}
    return Reply({"id": "chat-1", "object": "chat.completion", "created": 1, "model": "gpt-5-2026", "choices": [choice], "usage": USAGE})


LOOKS = says(next_thought="look", next_tool_name="weather", next_tool_args='{"city": "Athens"}')
FINISHES = says(next_thought="done", next_tool_name="finish", next_tool_args="{}")
ANSWER = says(reasoning="wet", answer="It rains")
PREDICT = """
import dspy

dspy.configure(lm=dspy.LM("openai/gpt-5"))
print(dspy.ChainOfThought("question -> answer")(question="Weather?").answer)
"""
"""Where the provider's address is a variable of the environment, DSPy sends by LiteLLM."""
REACT = '''
import os
import dspy

dspy.configure(lm=dspy.LM("openai/gpt-5", api_base=os.environ["OPENAI_BASE_URL"], cache=False))

def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"

class Outlook(dspy.Module):
    def __init__(self):
        self.forecaster = dspy.ReAct("question -> answer", tools=[weather])

    def forward(self, question):
        return self.forecaster(question=question)

print(Outlook()(question="Weather?").answer)
'''
"""Where the program gives it, by itself."""
