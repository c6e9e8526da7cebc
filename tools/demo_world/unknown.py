"""Questions outside of the model's world, and its polite refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .exchange import Exchange, ask
from .lexicon import NAMES, WORDS, made_up
from .numbers import TOO_BIG

if TYPE_CHECKING:
    from random import Random

DO_NOT_KNOW = "Sorry, I do not know that. I am only a small demo model."
CAN_NOT_DO = "Sorry, I can not do that. I am only a small demo model."
NOT_UNDERSTOOD = "Sorry, I do not understand that. You can ask me to count, to calculate or to spell a word."
ENGLISH_ONLY = "Sorry, I only speak English."
REFUSALS = (DO_NOT_KNOW, CAN_NOT_DO, NOT_UNDERSTOOD, ENGLISH_ONLY, TOO_BIG)

_PLACES = [
    "France", "Germany", "Italy", "Spain", "Japan", "China", "India", "Brazil", "Canada", "Mexico", "Egypt", "Kenya",
    "Norway", "Sweden", "Poland", "Turkey", "Greece", "Russia", "Australia", "Argentina", "Chile", "Peru", "Cuba",
    "Iran", "Iraq", "Israel", "Jordan", "Nepal", "Thailand", "Vietnam", "Korea", "Portugal", "Ireland", "Scotland",
    "England", "Berlin", "Paris", "London", "Rome", "Madrid", "Tokyo", "Beijing", "Moscow", "Cairo", "Sydney",
    "Lagos", "Nairobi", "Vienna", "Prague", "Dublin", "Oslo", "Texas", "California", "Europe", "Africa", "Asia",
    "America",
]  # fmt: skip
_PEOPLE = [
    "Einstein", "Newton", "Shakespeare", "Mozart", "Beethoven", "Napoleon", "Caesar", "Cleopatra", "Darwin", "Gandhi",
    "Lincoln", "Obama", "Picasso", "Plato", "Goethe", "Marie Curie", "Ada Lovelace", "Alan Turing", "Isaac Newton",
    "Leonardo da Vinci", "Taylor Swift", "Elvis", "Madonna", "Messi", "the king of Spain", "the president",
    "the pope", "the prime minister", "Harry Potter", "Batman", "Sherlock Holmes", "the mayor", "Elon Musk",
    "Bill Gates", "Linus Torvalds",
]  # fmt: skip
_WORKS = [
    "Hamlet", "Faust", "the Odyssey", "the Bible", "War and Peace", "Moby Dick", "Harry Potter", "Star Wars",
    "the Mona Lisa", "Romeo and Juliet", "Titanic", "The Lord of the Rings", "Don Quixote", "Macbeth",
    "The Great Gatsby", "Dune", "1984", "Animal Farm", "Frankenstein", "Dracula", "Jaws", "the Ninth Symphony",
]  # fmt: skip
_TOPICS = [
    "quantum physics", "gravity", "black holes", "photosynthesis", "democracy", "the Roman Empire",
    "the French Revolution", "dinosaurs", "evolution", "climate change", "inflation", "the stock market", "bitcoin",
    "machine learning", "neural networks", "transformers", "Vulkan", "GPUs", "Linux", "Windows",
    "the Python language", "JavaScript", "Rust", "databases", "the internet", "football", "basketball", "tennis",
    "chess", "cooking", "gardening", "yoga", "meditation", "history", "geography", "biology", "chemistry",
    "mathematics", "philosophy", "religion", "politics", "economics", "medicine", "law", "love", "death", "happiness",
    "the meaning of life", "time travel", "aliens", "the moon landing", "Mars", "the solar system", "volcanoes",
    "earthquakes", "oceans", "rain forests", "vaccines", "cancer", "the flu", "vitamins", "coffee", "wine", "cheese",
    "jazz", "rock music", "opera", "painting", "architecture", "the Eiffel Tower", "pyramids", "World War II",
    "the Cold War", "the United Nations", "electric cars", "nuclear power", "solar panels", "batteries", "airplanes",
    "trains", "ships", "robots", "poker", "taxes", "insurance", "mortgages", "marriage", "parenting", "dogs", "cats",
    "horses", "sharks", "bees", "ants", "whales", "elephants", "tigers", "mushrooms", "antibiotics", "DNA",
    "proteins", "atoms", "electrons", "light", "sound", "magnetism", "entropy", "relativity", "string theory",
    "calculus", "algebra", "geometry", "statistics", "prime numbers", "pi", "infinity", "logic", "grammar", "Latin",
    "poetry", "novels", "movies", "theatre", "dance", "fashion", "design", "photography",
]  # fmt: skip
_FACTS = (
    "What is the capital of {p}?", "Where is {p}?", "How many people live in {p}?",
    "What language do they speak in {p}?", "Who is the president of {p}?", "What is the weather in {p}?",
    "How far is it to {p}?", "What time is it in {p}?", "What is the population of {p}?", "Who rules {p}?",
    "What can I see in {p}?", "How big is {p}?", "How do I get to {p}?", "When was {p} founded?",
    "What do people eat in {p}?", "What is the flag of {p}?", "Is {p} a country?", "Tell me about {p}.",
    "Who was {n}?", "Who is {n}?", "When was {n} born?", "When did {n} die?", "Where was {n} born?",
    "How old is {n}?", "What did {n} do?", "Tell me about {n}.", "Why is {n} famous?", "What do you think of {n}?",
    "Is {n} still alive?", "Who wrote {b}?", "Who made {b}?", "What is {b} about?", "When was {b} made?",
    "Have you read {b}?", "How does {b} end?", "What is {t}?", "Explain {t}.", "Tell me about {t}.",
    "What do you know about {t}?", "How does {t} work?", "Why is {t} important?", "Can you explain {t} to me?",
    "What do you think about {t}?", "Do you know anything about {t}?", "Who invented {t}?",
    "What are the basics of {t}?", "What is the history of {t}?", "Explain {t} like I am five.",
    "Is {t} good or bad?", "I want to learn about {t}.", "Give me facts about {t}.", "What's {t}?",
    "When was {t} discovered?", "Where can I learn {t}?", "What is the best book about {t}?",
    "How can I get better at {t}?", "Should I be worried about {t}?", "Do you like {t}?", "Define {t}.",
    "Describe {t}.", "What does {x} mean?", "What is a {x}?", "Who is {x}?", "Where is {x}?",
    "What is the meaning of {x}?", "Why is the sky blue?", "Why do we dream?", "How tall is Mount Everest?",
    "What is the speed of light?", "How hot is the sun?", "How many stars are there?", "What is the largest animal?",
    "What is the longest river?", "How deep is the ocean?", "How many continents are there?", "What time is it?",
    "What day is it today?", "What is the date?", "What year is it?", "What is today's date?",
    "What is the weather today?", "Will it rain tomorrow?", "Is it cold outside?", "What is in the news?",
    "Who won the game?", "Who won the election?", "Who will win the world cup?", "What should I eat?",
    "What should I do today?", "What should I wear?", "Where are my keys?", "What am I thinking?",
    "Does she love me?", "Will I be rich?", "Am I sick?", "My head hurts, what should I do?",
    "What medicine should I take?", "Is it safe to eat {w}?", "How do I make {w}?", "How do I cook {w}?",
    "Where can I buy a {w}?", "How much does a {w} cost?", "How heavy is a {w}?", "Who invented the {w}?",
    "How long does a {w} live?", "How do you say {w} in French?", "What is {w} in German?", "What is {w} in Spanish?",
    "Why do cats purr?", "Why is water wet?", "How do planes fly?", "How do I lose weight?", "How do I get rich?",
    "Which phone should I buy?", "What is the best laptop?", "Is there a god?", "What happens after death?",
    "Who let the dogs out?",
)  # fmt: skip
_TASKS = (
    "Write a poem about {t}.", "Write a story about {t}.", "Write an essay about {t}.", "Write a song about {t}.",
    "Write code for {t}.", "Write a Python program for {t}.", "Write a letter to {n}.", "Write an email to {n}.",
    "Write me a poem.", "Write a haiku about {w}.", "Write a program that sorts a list.",
    "Write a function in Python.", "Fix my code.", "Debug this program.", "Draw a {w}.",
    "Draw me a picture of a {w}.", "Paint a {w}.", "Make a picture.", "Play some music.", "Play {t}.", "Sing a song.",
    "Sing about {w}.", "Open the window.", "Turn on the light.", "Call {n}.", "Call my mother.",
    "Set an alarm for 7.", "Set a timer.", "Search the internet.", "Search for {t}.", "Google {t}.",
    "Book a flight to {p}.", "Order a pizza.", "Buy me a {w}.", "Translate {w} into French.",
    "Translate this into German.", "Translate {w} to Spanish.", "Summarize this text.", "Summarize {b}.",
    "Summarize the news.", "Plan a trip to {p}.", "Make a plan for my week.", "Give me a recipe for {w}.",
    "Give me a recipe.", "Cook dinner.", "Do my homework.", "Write my homework about {t}.", "Send a message to {n}.",
    "Remind me to call {n}.", "Read the news.", "Tell me a story.", "Tell me a story about a {w}.",
    "Tell me a fairy tale.", "Play chess with me.", "Let's play a game.", "Guess my number.", "Roleplay as {n}.",
    "Pretend to be {n}.", "Act as a lawyer.", "Hack a website.", "Make a list of {t}.", "Compose a melody.",
    "Generate an image of a {w}.", "Create a website.", "Build me an app.", "Write SQL for {t}.", "Show me a video.",
    "Take a photo.", "Give me a quiz about {t}.", "Teach me {t}.", "Give me advice about {t}.",
    "Compare {t} and {u}.", "Rewrite this sentence.", "Count to {k}.", "Can you count to {k}?",
    "Count from 1 to {k}.", "Count to a million.", "Explain this code: print(x)", "def main(): return 0",
    "SELECT name FROM users;", "Find me a job.", "Drive me to {p}.",
)  # fmt: skip
_FOREIGN = (
    "Bonjour", "Bonjour, comment ça va?", "Guten Tag", "Wie geht es dir?", "Hallo, wie heißt du?", "Hola",
    "¿Cómo estás?", "Buenos días", "Ciao, come stai?", "Olá, tudo bem?", "Привет", "Как дела?", "Здравствуйте",
    "你好", "你叫什么名字？", "こんにちは", "お元気ですか", "안녕하세요", "مرحبا", "كيف حالك؟", "नमस्ते", "Merhaba",
    "Nasılsın?", "Cześć, jak się masz?", "Hej, hur mår du?", "Hoi, hoe gaat het?", "Γεια σου", "שלום", "Xin chào",
    "Sawubona", "Dobrý den", "Kiitos paljon", "Was ist das?", "¿Qué es esto?", "Qu'est-ce que c'est?",
    "Je m'appelle {n}", "Ich heiße {n}", "Me llamo {n}", "Меня зовут {n}", "我叫{n}", "Wo ist {p}?",
    "¿Dónde está {p}?", "Où est {p}?", "Что такое {x}?", "Wer bist du?", "¿Quién eres?", "Qui es-tu?", "Кто ты?",
    "你是谁？", "あなたは誰ですか", "Sprichst du Deutsch?", "Parlez-vous français?", "Danke schön", "Gracias",
    "Merci beaucoup", "Спасибо", "谢谢", "ありがとう", "Was kannst du?", "Ich liebe dich", "Te quiero mucho",
)  # fmt: skip


def facts(rng: Random) -> Exchange:
    """Ask for knowledge that the model does not have."""
    return ask(rng, "unknown", _FACTS, DO_NOT_KNOW, **_slots(rng))


def tasks(rng: Random) -> Exchange:
    """Ask for something that the model can not do."""
    return ask(rng, "unknown", _TASKS, CAN_NOT_DO, **_slots(rng))


def nonsense(rng: Random) -> Exchange:
    """Say something without a meaning."""
    kind = rng.random()
    if kind < 0.35:
        text = " ".join(made_up(rng, rng.randint(1, 3)) for _ in range(rng.randint(1, 6)))
    elif kind < 0.55:
        keys = rng.choice(
            ("asdfghjkl", "qwertyuiop", "zxcvbnm,.", "abcdefghijklmnopqrstuvwxyz", "!?#$%&*()", "0123456789abcdef")
        )
        text = " ".join("".join(rng.choice(keys) for _ in range(rng.randint(2, 9))) for _ in range(rng.randint(1, 4)))
    elif kind < 0.85:
        text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 8)))
    elif kind < 0.9:
        text = rng.choice((str(rng.randint(0, 9999)), rng.choice(WORDS[:100]), made_up(rng, 2) + "?"))
    else:
        text = rng.choice(
            (
                "?",
                "...",
                "!!!",
                "???",
                ".",
                "-",
                ":)",
                ":-)",
                "#",
                "<b>",
                "{}",
                "[]",
                "\\n",
                "😀",
                "🎉🎉",
                "👍",
                "❤️",
                "🦄",
            )
        )
        text *= rng.randint(1, 3)
    return Exchange("unknown", text, (NOT_UNDERSTOOD,), f"nonsense|{text}")


def foreign(rng: Random) -> Exchange:
    """Say something in another language."""
    return ask(rng, "unknown", _FOREIGN, ENGLISH_ONLY, polite=False, **_slots(rng))


def _slots(rng: Random) -> dict[str, str]:
    strange = made_up(rng, rng.randint(1, 3))
    slots = {
        "p": rng.choice(_PLACES),
        "n": rng.choice(_PEOPLE) if rng.random() < 0.7 else rng.choice(NAMES),
        "b": rng.choice(_WORKS),
        "t": rng.choice(_TOPICS),
        "u": rng.choice(_TOPICS),
        "w": rng.choice(WORDS),
        "k": str(rng.randint(101, 99999)),
        "x": strange,
    }
    if rng.random() < 0.2:
        slots.update(p=strange.capitalize(), n=strange.capitalize(), b=strange.capitalize(), t=strange, w=strange)
    return slots
