"""The same sentences in six languages, written for this environment."""

LANGUAGES = {"en": "English", "de": "German", "fr": "French", "es": "Spanish", "it": "Italian", "zh": "Chinese"}

SENTENCES: list[dict[str, str]] = [
    {
        "en": "The train leaves at seven, and the tickets are on the kitchen table.",
        "de": "Der Zug fährt um sieben ab, und die Fahrkarten liegen auf dem Küchentisch.",
        "fr": "Le train part à sept heures et les billets sont sur la table de la cuisine.",
        "es": "El tren sale a las siete y los billetes están en la mesa de la cocina.",
        "it": "Il treno parte alle sette e i biglietti sono sul tavolo della cucina.",
        "zh": "火车七点出发，车票在厨房的桌子上。",
    },
    {
        "en": "My grandmother taught me how to bake bread without a recipe.",
        "de": "Meine Großmutter hat mir beigebracht, wie man ohne Rezept Brot backt.",
        "fr": "Ma grand-mère m'a appris à faire du pain sans recette.",
        "es": "Mi abuela me enseñó a hacer pan sin receta.",
        "it": "Mia nonna mi ha insegnato a fare il pane senza ricetta.",
        "zh": "我的祖母教我不用食谱烤面包。",
    },
    {
        "en": "If it rains tomorrow, we will visit the museum instead of the park.",
        "de": "Wenn es morgen regnet, besuchen wir das Museum statt den Park.",
        "fr": "S'il pleut demain, nous visiterons le musée au lieu du parc.",
        "es": "Si mañana llueve, visitaremos el museo en lugar del parque.",
        "it": "Se domani piove, visiteremo il museo invece del parco.",
        "zh": "如果明天下雨，我们就去参观博物馆，而不去公园。",
    },
    {
        "en": "The old bridge was repaired last summer and is open again.",
        "de": "Die alte Brücke wurde letzten Sommer repariert und ist wieder offen.",
        "fr": "Le vieux pont a été réparé l'été dernier et il est de nouveau ouvert.",
        "es": "El viejo puente fue reparado el verano pasado y está abierto de nuevo.",
        "it": "Il vecchio ponte è stato riparato l'estate scorsa ed è di nuovo aperto.",
        "zh": "那座旧桥去年夏天修好了，现在又开放了。",
    },
    {
        "en": "She has lived in this village for twenty years and knows everyone.",
        "de": "Sie lebt seit zwanzig Jahren in diesem Dorf und kennt jeden.",
        "fr": "Elle vit dans ce village depuis vingt ans et connaît tout le monde.",
        "es": "Vive en este pueblo desde hace veinte años y conoce a todos.",
        "it": "Vive in questo villaggio da vent'anni e conosce tutti.",
        "zh": "她在这个村子里住了二十年，认识每一个人。",
    },
    {
        "en": "Please close the window, because the children are already asleep.",
        "de": "Bitte schließen Sie das Fenster, denn die Kinder schlafen schon.",
        "fr": "Fermez la fenêtre, s'il vous plaît, car les enfants dorment déjà.",
        "es": "Cierre la ventana, por favor, porque los niños ya están durmiendo.",
        "it": "Per favore chiuda la finestra, perché i bambini dormono già.",
        "zh": "请把窗户关上，因为孩子们已经睡着了。",
    },
    {
        "en": "The doctor said that walking every day is better than any medicine.",
        "de": "Der Arzt sagte, dass tägliches Spazierengehen besser ist als jede Medizin.",
        "fr": "Le médecin a dit que marcher tous les jours vaut mieux que n'importe quel médicament.",
        "es": "El médico dijo que caminar todos los días es mejor que cualquier medicina.",
        "it": "Il medico ha detto che camminare ogni giorno è meglio di qualsiasi medicina.",
        "zh": "医生说每天散步比任何药都好。",
    },
    {
        "en": "We lost the game, but nobody in the stadium wanted to go home.",
        "de": "Wir haben das Spiel verloren, aber niemand im Stadion wollte nach Hause gehen.",
        "fr": "Nous avons perdu le match, mais personne dans le stade ne voulait rentrer.",
        "es": "Perdimos el partido, pero nadie en el estadio quería irse a casa.",
        "it": "Abbiamo perso la partita, ma nessuno nello stadio voleva tornare a casa.",
        "zh": "我们输了比赛，但是体育场里没有人想回家。",
    },
    {
        "en": "The library lends tools as well as books, and both are free.",
        "de": "Die Bibliothek verleiht nicht nur Bücher, sondern auch Werkzeug, und beides ist kostenlos.",
        "fr": "La bibliothèque prête des outils aussi bien que des livres, et les deux sont gratuits.",
        "es": "La biblioteca presta herramientas además de libros, y ambos son gratis.",
        "it": "La biblioteca presta attrezzi oltre ai libri, ed entrambi sono gratuiti.",
        "zh": "图书馆不仅借书，也借工具，两者都是免费的。",
    },
    {
        "en": "Nobody knows who painted this picture or when it was brought here.",
        "de": "Niemand weiß, wer dieses Bild gemalt hat oder wann es hierher gebracht wurde.",
        "fr": "Personne ne sait qui a peint ce tableau ni quand il a été apporté ici.",
        "es": "Nadie sabe quién pintó este cuadro ni cuándo lo trajeron aquí.",
        "it": "Nessuno sa chi abbia dipinto questo quadro né quando sia stato portato qui.",
        "zh": "没有人知道这幅画是谁画的，也不知道它是什么时候被带到这里的。",
    },
]
PAIRS = [
    *[("en", language) for language in LANGUAGES if language != "en"],
    *[(language, "en") for language in LANGUAGES if language != "en"],
    ("de", "fr"),
    ("zh", "de"),
]
