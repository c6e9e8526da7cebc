"""The words that the demo model plays with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

WORDS = [
    "ant", "apple", "arm", "autumn", "baby", "bag", "ball", "banana", "bank", "basket", "bath", "beach", "bear",
    "bed", "bee", "bell", "bench", "berry", "bicycle", "bird", "blanket", "boat", "book", "boot", "bottle", "bowl",
    "box", "boy", "branch", "brave", "bread", "breakfast", "bridge", "bright", "broom", "brother", "brush", "bucket",
    "bus", "butter", "button", "cake", "camel", "camera", "candle", "car", "carpet", "carrot", "castle", "cat",
    "chair", "cheese", "cherry", "chicken", "child", "circle", "city", "clock", "cloud", "coat", "coffee", "coin",
    "computer", "cook", "corn", "cow", "crab", "crown", "cup", "curtain", "daisy", "dance", "desk", "dinner", "dog",
    "doll", "dolphin", "door", "dragon", "dream", "dress", "drum", "duck", "eagle", "ear", "earth", "egg", "elephant",
    "evening", "eye", "face", "family", "farm", "father", "feather", "fence", "finger", "fire", "fish", "flag",
    "flower", "fly", "foot", "forest", "fork", "fox", "friend", "frog", "fruit", "game", "garden", "gate", "ghost",
    "gift", "giraffe", "girl", "glass", "glove", "goat", "gold", "goose", "grape", "grass", "green", "guitar", "hair",
    "hammer", "hand", "happy", "hat", "heart", "hello", "hen", "hill", "honey", "horse", "house", "ice", "island",
    "jacket", "jam", "jar", "juice", "jump", "kettle", "key", "king", "kitchen", "kite", "kitten", "knee", "knife",
    "ladder", "lake", "lamp", "leaf", "lemon", "letter", "light", "lion", "lizard", "lunch", "machine", "magic",
    "map", "market", "melon", "milk", "mirror", "money", "monkey", "moon", "morning", "mother", "mountain", "mouse",
    "mouth", "movie", "music", "nail", "name", "nest", "night", "nose", "number", "nurse", "ocean", "office", "onion",
    "orange", "owl", "paint", "panda", "paper", "park", "parrot", "peach", "pear", "pen", "pencil", "penguin",
    "people", "pepper", "piano", "picture", "pig", "pillow", "pilot", "pizza", "planet", "plant", "plate", "pocket",
    "potato", "prince", "puppy", "purple", "queen", "question", "quiet", "rabbit", "rain", "rainbow", "red", "rice",
    "ring", "river", "road", "robot", "rocket", "roof", "room", "rose", "salt", "sand", "school", "sea", "shadow",
    "sheep", "ship", "shirt", "shoe", "silver", "sister", "sky", "sleep", "smile", "snail", "snake", "snow", "soap",
    "sock", "song", "soup", "spider", "spoon", "spring", "star", "stone", "storm", "story", "street", "sugar",
    "summer", "sun", "swan", "table", "tail", "tea", "teacher", "tiger", "time", "toast", "tomato", "tooth", "tower",
    "toy", "train", "tree", "truck", "turtle", "umbrella", "unicorn", "village", "violin", "voice", "wall", "watch",
    "water", "whale", "wheel", "wind", "window", "winter", "wolf", "woman", "wood", "word", "world", "yellow",
    "zebra",
]  # fmt: skip

OPPOSITES = {
    one: other
    for first, second in (
        pair.split("/")
        for pair in [
            "hot/cold",
            "big/small",
            "up/down",
            "left/right",
            "in/out",
            "open/closed",
            "happy/sad",
            "fast/slow",
            "high/low",
            "new/old",
            "day/night",
            "black/white",
            "good/bad",
            "hard/soft",
            "wet/dry",
            "rich/poor",
            "strong/weak",
            "light/dark",
            "early/late",
            "first/last",
            "full/empty",
            "loud/quiet",
            "long/short",
            "thick/thin",
            "wide/narrow",
            "clean/dirty",
            "near/far",
            "true/false",
            "yes/no",
            "love/hate",
            "win/lose",
            "push/pull",
            "buy/sell",
            "give/take",
            "start/stop",
            "begin/end",
            "come/go",
            "sweet/sour",
            "deep/shallow",
            "sharp/blunt",
            "brave/afraid",
            "easy/difficult",
            "cheap/expensive",
            "awake/asleep",
            "alive/dead",
            "above/below",
            "before/after",
            "always/never",
            "inside/outside",
            "same/different",
            "hello/goodbye",
            "north/south",
            "east/west",
            "laugh/cry",
            "remember/forget",
            "young/aged",
            "friend/enemy",
        ]
    )
    for one, other in ((first, second), (second, first))
}

COLOURS = {
    thing: colour
    for colour, things in {
        "red": "a tomato,a strawberry,blood,a cherry,a fire truck,a stop sign,a ruby",
        "yellow": "a banana,the sun,a lemon,butter,a canary,corn,a sunflower",
        "green": "grass,a frog,a leaf,a cucumber,a pea,spinach,an emerald",
        "blue": "the sky,the sea,a sapphire,a blueberry,the ocean",
        "white": "snow,milk,a swan,salt,sugar,paper,a cloud,rice",
        "black": "coal,a raven,the night,ink,tar",
        "orange": "an orange,a carrot,a pumpkin,an apricot",
        "grey": "an elephant,a mouse,ash,a rain cloud",
        "brown": "chocolate,wood,a bear,coffee,soil",
        "pink": "a flamingo,a pig,bubble gum",
        "purple": "a plum,an eggplant,lavender,an amethyst",
    }.items()
    for thing in things.split(",")
}

SOUNDS = dict(
    pair.split("/")
    for pair in [
        "dog/woof",
        "cat/meow",
        "cow/moo",
        "duck/quack",
        "sheep/baa",
        "pig/oink",
        "horse/neigh",
        "lion/roar",
        "frog/ribbit",
        "owl/hoot",
        "bee/buzz",
        "snake/hiss",
        "mouse/squeak",
        "rooster/cock-a-doodle-doo",
        "chicken/cluck",
        "wolf/howl",
        "crow/caw",
        "goat/maa",
        "donkey/hee-haw",
        "turkey/gobble",
        "bird/tweet",
        "bear/growl",
        "goose/honk",
        "cricket/chirp",
    ]
)

RHYMES = {
    word: tuple(other for other in group if other != word)
    for group in (
        line.split()
        for line in (
            "cat hat bat rat mat",
            "dog fog log frog",
            "tree bee sea key knee",
            "moon spoon soon noon",
            "house mouse blouse",
            "star car jar far",
            "cake lake snake rake",
            "light night kite bite",
            "rain train plane chain",
            "ring king sing wing",
            "ball wall tall fall",
            "boat coat goat note",
            "bear chair hair pear",
            "nose rose toes hose",
            "fish dish wish",
            "duck truck luck",
            "sun run fun bun",
            "bed red head bread",
            "book cook look hook",
            "day play way grey",
            "snow go toe low",
            "fox box socks rocks",
            "pen hen ten men",
            "pie sky fly eye",
            "blue shoe two zoo",
            "hill bill pill mill",
            "sock clock rock lock",
            "bug mug rug hug",
        )
    )
    for word in group
}

PLURALS = {
    **{word: f"{word}s" for word in [
        "cat", "dog", "apple", "book", "car", "tree", "house", "star", "bird", "cow", "cup", "hat", "key", "king",
        "lion", "table", "train",
    ]},
    **{word: f"{word}s" for word in [
        "flower", "boat", "chair", "door", "egg", "hand", "horse", "lamp", "spoon", "window", "girl", "boy", "day",
        "toy", "monkey",
    ]},
    **{word: f"{word}es" for word in [
        "box", "bus", "fox", "glass", "brush", "dish", "wish", "watch", "church", "class", "potato", "tomato",
        "bench", "beach",
    ]},
    **{word: f"{word[:-1]}ies" for word in [
        "baby", "city", "lady", "story", "berry", "cherry", "party", "puppy", "family", "country", "fly",
    ]},
    **{word: f"{word[:-1]}ves" for word in ["leaf", "wolf", "half", "shelf", "calf", "loaf"]},
    "knife": "knives", "life": "lives", "child": "children", "man": "men", "woman": "women", "foot": "feet",
    "tooth": "teeth", "goose": "geese", "mouse": "mice", "sheep": "sheep", "fish": "fish", "person": "people",
}  # fmt: skip

NAMES = [
    "Ada", "Adam", "Aisha", "Alan", "Alex", "Alice", "Amir", "Amy", "Ana", "Anders", "Andrea", "Anna", "Anton",
    "Aria", "Arthur", "Aya", "Ben", "Bella", "Bianca", "Bob", "Boris", "Bruno", "Carla", "Carlos", "Carmen", "Cem",
    "Charlie", "Chen", "Chloe", "Clara", "Claire", "Daniel", "Dana", "Dario", "David", "Diego", "Dora", "Dylan",
    "Elena", "Eli", "Elif", "Ella", "Emil", "Emily", "Emma", "Erik", "Esther", "Eva", "Fatima", "Felix", "Fiona",
    "Frank", "Freya", "Gabriel", "George", "Gina", "Giulia", "Grace", "Greta", "Hana", "Hannah", "Hans", "Harry",
    "Hassan", "Heidi", "Helen", "Henry", "Hugo", "Ian", "Ibrahim", "Ida", "Ines", "Ingrid", "Iris", "Isaac", "Isabel",
    "Ivan", "Jack", "Jacob", "James", "Jamila", "Jan", "Jane", "Jasmine", "Jean", "Jenny", "Jin", "John", "Jonas",
    "Jose", "Julia", "Jun", "Kai", "Karen", "Karim", "Kate", "Ken", "Kenji", "Kim", "Klaus", "Lars", "Laura", "Layla",
    "Lea", "Leo", "Leila", "Lena", "Liam", "Lily", "Lina", "Linda", "Linus", "Lisa", "Liu", "Louis", "Lucas", "Lucy",
    "Luis", "Luna", "Maja", "Malik", "Marco", "Maria", "Marie", "Mario", "Mark", "Marta", "Martin", "Mary", "Mateo",
    "Max", "Maya", "Mei", "Mia", "Michael", "Mila", "Milan", "Mohamed", "Mona", "Nadia", "Naomi", "Nico", "Nina",
    "Noah", "Nora", "Olga", "Oliver", "Olivia", "Omar", "Oscar", "Otto", "Pablo", "Paul", "Paula", "Pedro", "Peter",
    "Petra", "Philip", "Pia", "Priya", "Quinn", "Rachel", "Raj", "Ravi", "Rebecca", "Rita", "Robert", "Robin", "Rosa",
    "Ruth", "Sam", "Samira", "Sandra", "Sara", "Sean", "Sergei", "Simon", "Sofia", "Sonia", "Stefan", "Steve", "Sven",
    "Tara", "Tarek", "Theo", "Thomas", "Tim", "Tina", "Tom", "Uma", "Vera", "Victor", "Viktoria", "Walter", "Wei",
    "Willow", "Yara", "Yasmin", "Yuki", "Yusuf", "Zara", "Zoe",
]  # fmt: skip

PHRASES = [
    "good morning", "the sky is blue", "I like tea", "hello world", "one two three", "the cat sat on the mat",
    "we are friends", "it is late", "the sun is warm", "birds can fly", "my boat is red", "ice is cold",
    "I love music", "time to sleep", "see you soon", "the moon is bright", "cows eat grass", "fish can swim",
    "open the door", "dinner is ready", "the river is deep", "snow is white", "rain makes me happy",
    "the train is late", "we like to dance", "the old house is empty", "a big green tree", "ten small birds",
    "my dog is fast", "read a book",
]  # fmt: skip

_ONSETS = [
    "b", "c", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z", "br", "ch", "cl", "dr",
    "fl", "gr", "kr", "pl", "sh", "sl", "st", "th", "tr",
]  # fmt: skip
_VOWELS = ["a", "e", "i", "o", "u", "a", "e", "i", "o", "ai", "ee", "oo", "ou"]
_CODAS = ["", "", "", "n", "r", "l", "s", "t", "m", "k", "nd", "st", "ck"]


def made_up(rng: Random, num_syllables: int) -> str:
    """Return a pronounceable word that need not exist."""
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(num_syllables))
