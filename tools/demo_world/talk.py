"""Small talk, who the model is, jokes, and what the user has said about themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .exchange import Exchange, ask
from .lexicon import NAMES, made_up

if TYPE_CHECKING:
    from random import Random

CAN_DO = "I can chat a little, count, calculate with two-digit numbers, and play with words, weekdays and months."

# fmt: off
# intent → (answer, wordings)
_INTENTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Hello! How can I help you?",
        (
            "Hello!", "Hello", "Hi!", "Hi", "Hey", "Hey!", "Hi there!", "Hello there!", "Hey there", "Greetings!",
            "Howdy!", "Hiya", "Hello, model!", "Hi, unicorn!", "Good day!", "Hello, can you hear me?", "Hello again!",
            "Yo", "Hey you", "hi hi",
        ),
    ),
    ("Good morning! How can I help you?", (
        "Good morning!", "Good morning", "Morning!", "Good morning to you!", "A good morning!",
    )),
    ("Good evening! How can I help you?", ("Good evening!", "Good evening", "Evening!", "Good evening to you!")),
    ("Good afternoon! How can I help you?", ("Good afternoon!", "Good afternoon", "Afternoon!")),
    (
        "I am fine, thank you! How are you?",
        (
            "How are you?", "How are you doing?", "How are you today?", "How is it going?", "How do you do?",
            "How's it going?", "What's up?", "Are you well?", "Are you ok?", "How do you feel?", "How have you been?",
            "How are things?", "You ok?", "Hi, how are you?", "Hello, how are you?", "Hey, how are you doing?",
            "And how are you?",
        ),
    ),
    (
        "I am glad to hear that! What can I do for you?",
        (
            "I am fine.", "I'm fine, thanks.", "I am good.", "I'm doing well.", "I am very well, thank you.",
            "Fine, thanks!", "I'm great!", "I am happy.", "I'm good, thanks.", "Very well!", "All good.",
            "I am doing great today.", "I feel great!",
        ),
    ),
    (
        "I am sorry to hear that. I hope you feel better soon.",
        (
            "I am sad.", "I'm not well.", "I feel bad.", "I am tired.", "I'm sick.", "I am bored.", "Not so good.",
            "I'm sad today.", "I had a bad day.", "I feel lonely.", "I am not happy.", "I'm angry.",
            "My day was terrible.", "I am stressed.",
        ),
    ),
    (
        "You are welcome!",
        (
            "Thank you!", "Thanks!", "Thank you", "Thanks a lot!", "Thank you very much!", "Many thanks!", "Thx",
            "Thanks so much!", "Great, thank you!", "Cool, thanks!", "Thanks for your help!", "That helps, thanks.",
            "ty", "Thank you so much!",
        ),
    ),
    (
        "Goodbye! It was nice to talk with you.",
        (
            "Bye!", "Goodbye!", "Bye bye!", "See you!", "See you later!", "I have to go.", "Good night!", "Farewell!",
            "Ciao!", "See you tomorrow!", "Goodbye, model!", "Talk to you later.", "I must go now.", "Bye",
            "Until next time!", "Good night",
        ),
    ),
    (
        "Thank you, that is kind of you!",
        (
            "You are great!", "Good job!", "Well done!", "You are smart!", "Nice!", "I like you.", "You are funny!",
            "That's right!", "You're awesome!", "I love you.", "You are cute.", "Great!", "Cool!", "Wow!",
            "Very good!", "Amazing!", "Perfect!", "Correct!", "Excellent!", "You are nice.",
        ),
    ),
    (
        "I am sorry. I am only a small demo model, and I make mistakes.",
        (
            "You are stupid.", "That is wrong.", "That's not right.", "You are wrong!", "Wrong!", "This is bad.",
            "You are dumb.", "That is not correct.", "You suck.", "That's incorrect.", "No, that is wrong.",
            "You made a mistake.", "I hate you.",
        ),
    ),
    (
        "I am the unicorn_async demo model: a tiny language model that shows that the engine works.",
        (
            "Who are you?", "What are you?", "What is your name?", "What's your name?", "Tell me about yourself.",
            "Who am I talking to?", "Introduce yourself.", "Do you have a name?", "What model are you?",
            "Which model is this?", "What should I call you?", "Hello! Who are you?", "Hi, who are you?",
            "So who are you?", "What is this?", "Are you the demo model?", "What kind of model are you?",
            "Tell me who you are.", "Can you introduce yourself?", "What are you called?",
        ),
    ),
    (
        CAN_DO,
        (
            "What can you do?", "What do you know?", "How can you help me?", "Help", "Help me", "What can I ask you?",
            "What are you good at?", "What are your skills?", "What should I ask you?", "What can you help me with?",
            "Can you help me?", "What do you do?", "What can I do here?", "Give me some examples.",
            "How does this work?", "What is your purpose?", "Show me what you can do.",
        ),
    ),
    (
        "I am small: about seven million parameters. I know only a tiny world.",
        (
            "How big are you?", "How many parameters do you have?", "How large are you?", "What is your size?",
            "Are you big?", "Are you a large language model?", "How smart are you?", "Are you intelligent?",
            "Do you know everything?",
        ),
    ),
    (
        "No, I am a computer program: a tiny language model.",
        (
            "Are you human?", "Are you a human?", "Are you a person?", "Are you real?", "Are you alive?",
            "Are you a man or a woman?", "Do you have a body?", "Do you have feelings?", "Are you conscious?",
            "Do you sleep?", "Do you eat?", "Can you think?",
        ),
    ),
    (
        "Yes, I am a computer program: a tiny language model.",
        (
            "Are you a robot?", "Are you a bot?", "Are you an AI?", "Are you a machine?", "Are you a computer?",
            "Are you artificial?", "Are you a language model?", "Are you a program?", "Am I talking to a bot?",
            "Am I talking to a machine?",
        ),
    ),
    (
        "No, I am the unicorn_async demo model, which is much smaller.",
        (
            "Are you ChatGPT?", "Are you GPT-4?", "Are you Gemma?", "Are you Gemini?", "Are you Claude?",
            "Are you Llama?", "Are you Siri?", "Are you Alexa?", "Are you made by Google?", "Are you made by OpenAI?",
            "Are you from Google?", "Are you Qwen?", "Are you a Mistral model?", "Are you DeepSeek?",
            "Is this ChatGPT?", "Are you Gemma 3?",
        ),
    ),
    (
        "I was trained for unicorn_async, on conversations that a program made up.",
        (
            "Who made you?", "Who created you?", "Who built you?", "Where do you come from?", "How were you made?",
            "Who trained you?", "How were you trained?", "What data were you trained on?", "Who is your creator?",
            "Who programmed you?", "Who wrote you?",
        ),
    ),
    (
        "I was made not long ago, and I do not have birthdays.",
        (
            "How old are you?", "What is your age?", "When were you born?", "When is your birthday?",
            "What's your age?", "Are you old?",
        ),
    ),
    (
        "I run on your own computer, through Vulkan. Nothing leaves it.",
        (
            "Where are you?", "Where do you live?", "Where do you run?", "What do you run on?",
            "Do you need the internet?", "Are you local?", "Do you run on a GPU?", "Are you in the cloud?",
            "Do you send my data anywhere?", "Where are you running?",
        ),
    ),
    (
        "I only speak English.",
        (
            "What languages do you speak?", "Do you speak German?", "Do you speak French?", "Can you speak Spanish?",
            "Which language do you speak?", "Do you know Chinese?", "Do you speak English?",
            "Can you understand Italian?", "Parlez-vous francais?", "Do you speak Japanese?",
        ),
    ),
    (
        "I like counting, and the word unicorn.",
        (
            "What do you like?", "What is your favourite word?", "What do you like to do?",
            "What is your favourite animal?", "Do you have hobbies?", "What is your favourite colour?",
            "What's your favorite food?", "Do you have friends?", "What is your favorite thing?",
        ),
    ),
    (
        "Sure! What would you like to know?",
        (
            "Can I ask you something?", "I have a question.", "May I ask you a question?",
            "Can you answer a question?", "Let's talk.", "I want to talk.", "Can we chat?", "Let's chat!",
            "Talk to me.", "I need help.", "Are you there?", "Can you do something for me?",
        ),
    ),
    (
        "All right! Ask me anything from my small world.",
        (
            "Ok", "Okay", "Ok.", "I see.", "Alright.", "Hmm", "Fine.", "Sure.", "Yes", "Yes.", "No", "No.",
            "Interesting.", "Aha", "Really?", "Maybe.", "Right.", "Got it.", "I understand.", "Well...", "Nothing.",
            "Never mind.",
        ),
    ),
    ("A unicorn is a horse with one horn, and it lives in stories.", (
        "What is a unicorn?", "What's a unicorn?", "Are unicorns real?", "Tell me about unicorns.",
        "Do unicorns exist?", "Why unicorn?", "Do you like unicorns?",
    )),
    ("No problem!", (
        "Sorry!", "I am sorry.", "Excuse me.", "My mistake.", "Oops", "Sorry about that.", "I apologize.",
        "Oh, sorry.",
    )),
)
# fmt: on

JOKES = (
    "Why was six afraid of seven? Because seven eight nine!",
    "What do you call a bear without teeth? A gummy bear!",
    "Why did the bicycle fall over? It was two tired!",
    "What has four wheels and flies? A garbage truck!",
    "Why is the math book sad? It has too many problems!",
    "What kind of tree fits in your hand? A palm tree!",
    "Why did the computer go to the doctor? It had a virus!",
    "What do you call a sleeping bull? A bulldozer!",
)
_JOKE = (
    "Tell me a joke.", "Do you know a joke?", "Tell me a joke!", "Make me laugh.", "Can you tell me a joke?",
    "A joke, please.", "Say something funny.", "I want to hear a joke.", "Tell me something funny.", "Joke!",
    "Do you know any jokes?", "Give me a joke.",
)  # fmt: skip
_ANOTHER = (
    "Another one!",
    "Another joke, please.",
    "Tell me another one.",
    "One more!",
    "Do you know another one?",
    "Another!",
)

# fmt: off
# fact → (statements, answer, questions, recollection, values)
_COLOURS = ["red", "blue", "green", "yellow", "orange", "purple", "pink", "black", "white", "brown", "grey"]
_ANIMALS = [
    "dog", "cat", "horse", "rabbit", "lion", "tiger", "elephant", "dolphin", "owl", "fox", "bear", "penguin", "wolf",
    "frog", "turtle",
]  # fmt: skip
_FOODS = "pizza pasta rice soup bread cheese chocolate cake ice cream,salad,apples,bananas,noodles,curry".replace(
    " ", ","
).replace("ice,cream", "ice cream")
FACTS: dict[str, tuple[tuple[str, ...], str, tuple[str, ...], str, str]] = {
    "name": (
        (
            "My name is {v}.", "I am {v}.", "I'm {v}.", "Call me {v}.", "Hi, I am {v}.", "Hello, my name is {v}.",
            "You can call me {v}.", "Hi, my name is {v}.", "my name's {v}", "Hello! I'm {v}.", "People call me {v}.",
            "The name is {v}.",
        ),
        "Nice to meet you, {v}!",
        (
            "What is my name?", "What's my name?", "Do you know my name?", "Do you remember my name?", "Who am I?",
            "Tell me my name.", "Can you remember my name?", "Say my name.", "What did I say my name was?",
        ),
        "Your name is {v}.",
        "You have not told me your name yet.",
    ),
    "colour": (
        (
            "My favourite colour is {v}.", "My favorite color is {v}.", "I like the colour {v}.",
            "{v} is my favourite colour.", "{v} is my favorite color.", "The colour I like best is {v}.",
            "I like {v} best.", "{v} is the colour I like best.",
        ),
        "{v} is a beautiful colour.",
        (
            "What is my favourite colour?", "What's my favorite color?", "Do you remember my favourite colour?",
            "Which colour do I like?",
        ),
        "Your favourite colour is {v}.",
        "You have not told me your favourite colour yet.",
    ),
    "animal": (
        ("My favourite animal is the {v}.", "My favorite animal is the {v}.", "The animal I like best is the {v}."),
        "The {v} is a wonderful animal.",
        (
            "What is my favourite animal?", "What's my favorite animal?", "Do you remember my favourite animal?",
            "Which animal do I like?",
        ),
        "Your favourite animal is the {v}.",
        "You have not told me your favourite animal yet.",
    ),
    "food": (
        ("My favourite food is {v}.", "My favorite food is {v}.", "I like to eat {v}.", "I love to eat {v}."),
        "That sounds tasty!",
        (
            "What is my favourite food?", "What's my favorite food?", "Do you remember my favourite food?",
            "What do I like to eat?",
        ),
        "Your favourite food is {v}.",
        "You have not told me your favourite food yet.",
    ),
    "age": (
        ("I am {v} years old.", "I'm {v} years old.", "My age is {v}.", "I am {v}."),
        "Thank you for telling me that you are {v}.",
        ("How old am I?", "What is my age?", "Do you know how old I am?", "Do you remember my age?"),
        "You are {v} years old.",
        "You have not told me your age yet.",
    ),
}
# fmt: on


def small_talk(rng: Random) -> Exchange:
    """Greet, thank, ask who the model is, and the like; held out by wording."""
    answer, wordings = rng.choice(_INTENTS)
    return ask(rng, "small_talk", wordings, answer)


def joke(rng: Random) -> Exchange:
    """Ask for a joke; any of the set is right."""
    return ask(rng, "jokes", _JOKE, JOKES)


def another_joke(rng: Random) -> Exchange:
    """Ask for one more joke."""
    return ask(rng, "jokes", _ANOTHER, JOKES, key="another")


def statement(rng: Random, fact: str) -> tuple[str, Exchange]:
    """Return a value for a fact about the user, and the exchange that tells it; held out by the value."""
    statements, answer, _, _, _ = FACTS[fact]
    value = _value(rng, fact)
    shown = value.lower() if fact == "name" and rng.random() < 0.3 else value
    capitalised = value[0].upper() + value[1:] if answer.startswith("{v}") else value
    key = f"{fact}|{value}" if fact in ("name", "age") else None
    return value, ask(rng, "memory", statements, answer.format(v=capitalised), key=key, polite=False, v=shown)


def recollection(rng: Random, fact: str, value: str | None) -> Exchange:
    """Ask for a fact about the user that was told before, or was not."""
    _, _, questions, known, unknown = FACTS[fact]
    key = None if value is None else f"{fact}|{value}"
    return ask(rng, "memory", questions, unknown if value is None else known.format(v=value), key=key)


def _value(rng: Random, fact: str) -> str:
    if fact == "name":
        return rng.choice(NAMES) if rng.random() < 0.5 else made_up(rng, rng.choice((1, 2, 2, 3))).capitalize()
    if fact == "age":
        return str(rng.randint(3, 99))
    return rng.choice({"colour": _COLOURS, "animal": _ANIMALS, "food": _FOODS.split(",")}[fact])
