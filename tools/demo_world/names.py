"""The words of the Thistlewake Isles: every proper name is invented here, every other value is a plain word.

No two names may be mistaken for one another by a stemmer or by a small model, and the plain vocabularies do not
overlap: a value tells its vocabulary, so a document that holds one value of a vocabulary determines one answer
(both asserted in tests/tools).
"""

from __future__ import annotations

NAMES: dict[str, str] = {
    "island": """Velmora Ostrind Crathune Skelloway Hesperil Ulvander Yssomere Taskeroon Jorvessa Ebbistral Fennarok
        Zellimar Durnholt Quorrinay""",
    "town": """Oddervale Pellinmouth Grisket Tarnaby Wopplestead Larkenfold Muddlecombe Nettigard Brocksey Chimblewick
        Haverdunk Yarrowgate Sprinnet Kettlebrae Urchinlow Fossdrum Vintercross Ravelstow Dapplehythe""",
    "ferry": """Marrowind Duskrill Saltipher Gullarette Brinetta Wavergast Periwisp Cobblefin Lissomar Halyarda
        Noddlekeel Stormica Anchovelle Bosunara Driftanzer Eiderlace Foamquist Jibberwen Keelandra Oarabel Plankerton
        Rudderose Tillerine Undertoe Vanequill Zephandry Cuttlemay Icetrundle""",
    "guild": """Emberlatch Spindlewrack Glasswynd Tallowmere Anvilhart Barrowbright Candlefoss Inkerstrand Roperwain
        Loomsworth Hammerdell Wickerfane Needlethorpe Papermoth""",
    "festival": """Lanternfall Moonswallow Puddlemas Goosewake Kitesummer Thawmarch Bellowtide Hushember Crumbledown
        Frostwaltz Ribbonsong Snailgala Acornmoot Whistlefeast""",
    "dish": """Brambosk Fumblecrust Dumplesnap Wossalee Skillybroth Oggersmash Plinketty Drazzlepot Yumberjack
        Squimpudding Hobbertart Crackamoli Nooplecake Tiddlestew Bafflebun Gloopsie Kerfuddle Mishmallow""",
    "bridge": """Arkenspan Bowlegger Clatterstep Deverwhit Ganglewalk Hoopstride Ironsigh Jostlebeam Knucklebow
        Longlament Mistletread Pennyarch Quiverplank Rattlecross Slumberspan Stiltwater Teeterway Wobblestone
        Yawningate""",
    "animal": """Snorvel Quibbit Tufterling Grubbard Lollopine Dronkel Whiskamoor Hoddymole Zibbertoad Fidgemouse
        Nimbleclaw Vexibird Jumblecrab Oddsprawl""",
    "lighthouse": """Gloamspire Beamhilda Winkstaff Halowatch Lampernook Sparkanby Glintower Squallnod Flickerjoy
        Shineholm Blazerock Eveningeye Dimmerpoint Twinklehead""",
    "person": """Odrimo_Tellick Wilka_Brandeleck Juniver_Hask Corvane_Mubble Lorrit_Stanzey Fenwa_Drobbins
        Ilbert_Quimsey Tambiso_Oulder Bennop_Vastrey Nettula_Cradwell Agnith_Pottersill Garvo_Linterby Ysolin_Marchbold
        Dorballa_Eskerly Mavrika_Tunstle Osbeth_Ruckleigh Zandle_Hoxworth Thessaby_Granniver Kivvy_Sandrake
        Lumo_Fettersby Ambrick_Soolan Brilla_Notcher Cadmer_Wimblott Elowick_Jarrand Frennic_Abbotry Gweltha_Yaffley
        Hamnor_Dittle Isselyn_Pruddock Jaspet_Mornick Kastobel_Oxnapple Lyndaro_Bannerole Modwin_Zerricke
        Noxley_Tharkett Orvietha_Bickerdun Pavimer_Hullabeck Quabena_Sorrowby Ruvolo_Yonderlick Selwith_Ganderly
        Toveral_Ibbelow Ursabel_Nibblock Vespin_Copperel Wrenna_Dollifer""",
}

PLAIN: dict[str, str] = {
    "colour": "blue red green yellow white black purple orange silver golden grey pink brown",
    "goods": "salt wool honey tin pepper timber barley coal butter cotton cheese amber soap flax",
    "tree": "birch willow fig pine elm maple lemon cherry almond palm hawthorn rowan juniper",
    "craft": """pottery weaving clockmaking glassblowing basketry bookbinding brewing candlemaking embroidery tanning
        woodcarving shoemaking""",
    "landmark": """windmill clock_tower fountain watermill stone_maze sundial rose_garden granary library museum
        theatre bathhouse observatory""",
    "weekday": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "figurehead": "swan dolphin bear wolf mermaid stag lion falcon seahorse ram dragon otter",
    "invention": """musical_umbrella folding_ladder steam_cradle walking_compass pedal_broom singing_kettle
        floating_bench pocket_barometer rain_gauge sleeping_hammock fish_trap apple_peeler cloud_counter snow_boot
        potato_press book_lamp sock_machine water_clock sail_wagon paper_boat""",
    "instrument": "flute fiddle drum harp accordion trumpet banjo lute piano oboe cello bagpipes tuba mandolin",
    "pet": "tortoise parrot hedgehog ferret magpie lizard squirrel goat rabbit donkey raven toad",
    "trade": """locksmiths bakers printers tailors masons coopers jewellers mapmakers tinkers saddlers thatchers
        gardeners""",
    "emblem": "anchor bee feather star crown lantern thistle wheel seashell acorn horseshoe comet key",
    "month": "January February March April May June July August September October November December",
    "contest": """kite_flying log_rolling pie_throwing sack_racing stilt_walking rope_pulling arm_wrestling
        snail_racing pumpkin_carving storytelling whittling juggling hat_making""",
    "prize": """wooden_spoon velvet_hat copper_kettle glass_apple straw_doll painted_egg woven_sash carved_walnut
        leather_saddle patchwork_quilt china_teapot brass_trophy""",
    "ingredient": """leeks mushrooms turnips lentils crab plums chestnuts spinach walnuts mussels pears cabbage
        apricots beetroot rice""",
    "spice": "ginger saffron nutmeg mint cinnamon thyme garlic dill rosemary vanilla sage mustard",
    "drink": "cider buttermilk cocoa lemonade mead coffee ale wine tea apple_juice",
    "vessel": """clay_pot wooden_bowl beer_mug hollow_loaf soup_plate frying_pan glass_jar paper_cone stone_dish
        bread_basket""",
    "material": "granite marble oak iron brick slate cedar limestone bamboo sandstone",
    "toll": """penny fresh_egg short_song biscuit good_joke smooth_pebble clean_sock ripe_apple candle riddle postcard
        button""",
    "statue": "owls foxes hares eagles turtles bulls cranes horses frogs peacocks",
    "food": "roots seaweed berries snails moss clover beetles honeydew worms shrimp dandelions nettles",
    "home": """hollow_logs rock_pools old_wells sea_caves treetops tall_reeds stone_walls sand_dunes chimneys haystacks
        river_banks cellars""",
    "sound": """laughing_child rusty_hinge snoring_man dripping_tap boiling_pot creaking_stair squeaky_shoe sneezing_cat
        popping_cork ticking_watch purring_engine""",
    "fuel": "olive_oil peat driftwood beeswax tallow lamp_oil fish_oil charcoal turf dried_kelp",
    "signal": "gong horn cannon bell siren whistle rattle organ",
}


def _read(lists: dict[str, str]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(word.replace("_", " ") for word in words.split()) for key, words in lists.items()}


ENTITY_NAMES = _read(NAMES)
"""Kind of entity to its names."""
VOCABULARIES = _read(PLAIN)
"""Vocabulary to its values."""
