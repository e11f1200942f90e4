// Shows the words of the point that is nearest to the pointer or finger; without it, nothing is lost but this.
(function () {
  "use strict";
  var tip = document.getElementById("tip");
  var current = null;
  function hide() {
    if (current) current.classList.remove("on");
    current = null;
    tip.classList.remove("shown");
  }
  function nearest(svg, x, y) {
    var best = null, least = 40 * 40;
    svg.querySelectorAll("circle[data-tip]").forEach(function (point) {
      var box = point.getBoundingClientRect();
      var dx = box.left + box.width / 2 - x, dy = box.top + box.height / 2 - y;
      if (dx * dx + dy * dy < least) { least = dx * dx + dy * dy; best = point; }
    });
    return best;
  }
  function show(event) {
    var svg = event.target.closest ? event.target.closest("svg") : null;
    var found = svg && (nearest(svg, event.clientX, event.clientY) || event.target.closest("[data-tip]"));
    if (!found) { hide(); return; }
    if (found !== current) {
      hide();
      current = found;
      found.classList.add("on");
      tip.textContent = found.getAttribute("data-tip");
      tip.classList.add("shown");
    }
    var box = tip.getBoundingClientRect();
    var left = Math.min(Math.max(8, event.clientX - box.width / 2), window.innerWidth - box.width - 8);
    var top = event.clientY - box.height - 16;
    tip.style.transform = "translate(" + left + "px," + (top < 8 ? event.clientY + 20 : top) + "px)";
  }
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", hide, true);
})();
