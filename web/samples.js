// Something to listen to before the first word is typed.

export const SAMPLES = [
  {
    title: "A weather report",
    text:
      "Good morning. A bright start on the coast, with a light breeze from the west. Clouds will gather over the hills " +
      "around noon, and by evening we expect a little rain. Take an umbrella, and enjoy the sun while it lasts.",
  },
  {
    title: "A tongue twister",
    text:
      "Peter Piper picked a peck of pickled peppers. If Peter Piper picked a peck of pickled peppers, where is the peck " +
      "of pickled peppers that Peter Piper picked?",
  },
  {
    title: "A bedtime story",
    text:
      "Once upon a time, at the edge of a quiet forest, there lived a fox who was afraid of the dark. Every evening she " +
      "asked the moon to stay a little longer. And one night, the moon answered. I am always here, it said. Sometimes " +
      "you only have to wait for the clouds to pass.",
  },
];
