// Sets the colour scheme that was chosen before anything is drawn.
try {
  const theme = localStorage.getItem("theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch { /* storage is off: the system's scheme it is */ }
